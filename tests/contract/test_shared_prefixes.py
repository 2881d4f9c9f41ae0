"""What requests share is computed and held once, and every family's answers stay those of transformers."""

import asyncio
from dataclasses import replace

import numpy
import pytest
import torch

from headway.core.records import ROUTED_EXPERTS
from headway.generator import places, slots
from headway.generator.prefixes import Prefix
from tests.contract.engine_contract import collect_all, request
from tests.contract.engine_parts import count_prefilled, make_engine
from tests.unit.family_models import FAMILIES, make_model

STEM = list(range(5, 29))
"""Of every prompt; half of the requests go on with the same ten tokens more."""


@pytest.fixture(autouse=True)
def short_prefixes_are_shared(monkeypatch):
    for room in (slots, places):
        monkeypatch.setattr(room, "MIN_SHARED_TOKENS", 8)
        monkeypatch.setattr(room, "MIN_SPARED_TOKENS", 8)


@pytest.fixture(params=FAMILIES)
def models(request):
    return [make_model(request.param, seed) for seed in (0, 1)]


def items(models, **options):
    """Ragged prompts of one stem, and a part of them of a longer one; their answers are ragged too."""
    has_experts = "num_experts" in models[0].config.to_dict()
    found = []
    for i in range(8):
        prompt = [*STEM, *(range(40, 50) if i % 2 else ()), *range(60, 60 + i)]
        item = request(f"r{i}", prompt, seed=i, **{"max_tokens": 8 + i, **options})
        found.append(replace(item, streams=(ROUTED_EXPERTS,) if has_experts else ()))
    return found


@torch.inference_mode()
def check(models, item, answer, *, upto=None):
    """Log-probs of each span, and the experts, are those of a forward pass of transformers."""
    prompt = list(item.prompt_ids)
    tokens = torch.tensor([[*prompt, *answer.token_ids]])
    at = 0
    for span in answer.spans:
        model = models[span.number]
        logp = model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        wanted = logp.gather(1, torch.tensor(list(answer.token_ids))[:, None])[:, 0]
        part = slice(at, at := at + span.num_tokens)
        if upto is None or span.number <= upto:
            given = torch.tensor(list(answer.logprobs))
            torch.testing.assert_close(given[part], wanted[part], atol=1e-4, rtol=0)
    if item.streams and upto is None:
        stream = answer.streams[ROUTED_EXPERTS]
        experts = numpy.frombuffer(stream.data, stream.dtype).reshape(stream.shape)
        logits = models[answer.spans[-1].number](tokens, output_router_logits=True).router_logits
        chosen = numpy.stack([each.topk(2).indices.numpy() for each in logits], axis=1)
        assert (experts[:-1] == chosen[:-1]).all()


def num_prefixes(engine):
    return sum(isinstance(region, Prefix) for region in engine._loop.slots._at)


async def test_sampled_answers_agree(models):
    engine = make_engine(models, max_running=8)
    wanted = items(models)
    for item, answer in zip(wanted, await collect_all(engine, wanted), strict=True):
        check(models, item, answer)
    assert num_prefixes(engine) >= 2  # the stem, and the longer one behind it
    await engine.close()


async def test_greedy_answers_are_those_of_transformers_token_for_token(models):
    engine = make_engine(models, max_running=8, prefill_chunk_tokens=1000)
    wanted = items(models, temperature=0.0)
    for item, answer in zip(wanted, await collect_all(engine, wanted), strict=True):
        tokens = models[0].generate(
            torch.tensor([list(item.prompt_ids)]), max_new_tokens=item.sampling.max_tokens, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert list(answer.token_ids) == tokens[0, len(item.prompt_ids) :].tolist()
    await engine.close()


async def test_what_is_shared_is_prefilled_once(models, monkeypatch):
    counted = count_prefilled(monkeypatch)
    engine = make_engine(models, max_running=8, prefill_chunk_tokens=1000)
    await collect_all(engine, [request(f"r{i}", [*STEM, *range(60, 60 + i)], seed=i) for i in range(2, 8)])
    assert sum(counted) <= len(STEM) + sum(range(2, 8))
    await engine.close()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_an_update_meets_rows_that_share(models, kv):
    engine = make_engine(models, max_running=8, chunk_tokens=1)
    wanted = items(models, max_tokens=22)
    begun = asyncio.Event()

    class Watched:
        async def generate(self, item):
            async for chunk in engine.generate(item):
                begun.set()
                yield chunk

    answers = asyncio.ensure_future(collect_all(Watched(), wanted))
    await begun.wait()
    await engine.apply(0, 1, "1", kv)
    late = items(models)
    late = [replace(item, request_id=f"late{i}", session=f"late{i}") for i, item in enumerate(late)]
    for item, answer in zip(wanted, await answers, strict=True):
        check(models, item, answer, upto=0 if kv == "keep" else None)
    for item, answer in zip(late, await collect_all(engine, late), strict=True):
        assert {span.number for span in answer.spans} == {1}
        check(models, item, answer)
    await engine.close()


async def test_answers_agree_after_preemption(models):
    engine = make_engine(models, max_running=8)
    loop = engine._loop
    loop.slots.memory.num_blocks = 3  # of a slot's one; the whole prompts, and little more
    wanted = items(models)
    late = replace(request("urgent", STEM, priority=-1, max_tokens=20), streams=wanted[0].streams)
    for item, answer in zip([*wanted, late], await collect_all(engine, [*wanted, late]), strict=True):
        check(models, item, answer)
    assert engine.stats().num_preemptions > 0
    await engine.close()
