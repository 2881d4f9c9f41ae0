"""The engine tells which experts each token was sent to, as transformers' routers would send them."""

import asyncio
from dataclasses import replace

import numpy
import pytest
import torch

from headway.core.records import ROUTED_EXPERTS
from tests.contract.engine_contract import collect, collect_all, request
from tests.contract.engine_parts import make_engine
from tests.unit.family_models import make_model

PROMPT = list(range(3, 33))


def wanting(name, prompt, **options):
    return replace(request(name, prompt, **options), streams=(ROUTED_EXPERTS,))


def experts_of(answer):
    stream = answer.streams[ROUTED_EXPERTS]
    assert (stream.axis, stream.dtype) == ("token", "int16")
    return numpy.frombuffer(stream.data, stream.dtype).reshape(stream.shape)


@torch.inference_mode()
def routers_choice(model, tokens):
    """Experts by falling probability, [tokens, expert layers, experts per token]."""
    found = model(torch.tensor([list(tokens)]), output_router_logits=True).router_logits
    return numpy.stack([logits.topk(2).indices.numpy() for logits in found], axis=1)


def check(model, prompt, answer):
    experts = experts_of(answer)
    tokens = [*prompt, *answer.token_ids]
    assert len(experts) == len(tokens)
    assert (experts[:-1] == routers_choice(model, tokens)[:-1]).all()
    assert (experts[-1] == -1).all()  # its KV was never computed


@pytest.fixture(params=["qwen3 moe", "qwen3 moe of some layers", "qwen3 moe every second"])
def models(request):
    return [make_model(request.param, seed) for seed in (0, 1)]


async def test_prompts_in_chunks_shared_prompts_and_answers_have_their_experts(models):
    engine = make_engine(models)
    items = [wanting(f"m{i}", PROMPT[: 30 - i % 2], group="g", seed=i, max_tokens=3 + i) for i in range(6)]
    answers = await collect_all(engine, items)
    for item, answer in zip(items, answers, strict=True):
        check(models[0], item.prompt_ids, answer)
    await engine.close()


async def test_the_next_turn_tells_of_the_whole_context(models):
    engine = make_engine(models)
    first = await collect(engine, wanting("t1", [4, 8, 15], session="s"))
    context = [4, 8, 15, *first.token_ids, 16, 23, 42]
    second = await collect(engine, wanting("t2", context, session="s"))
    check(models[0], context, second)
    await engine.close()


async def test_recomputed_kv_has_the_experts_of_the_new_weights(models):
    engine = make_engine(models, chunk_tokens=1)
    answer = asyncio.ensure_future(collect(engine, wanting("a", PROMPT, max_tokens=30)))
    while not engine.stats().num_running:  # noqa: ASYNC110, the engine has no event for it
        await asyncio.sleep(0.001)
    await engine.apply(0, 1, "1", "recompute")
    ended = await answer
    check(models[1 if ended.spans[-1].number else 0], PROMPT, ended)
    await engine.close()


async def test_what_was_not_asked_for_is_not_told_and_a_dense_model_has_none(models):
    engine = make_engine(models)
    assert not (await collect(engine, request("a", PROMPT))).streams
    await engine.close()
    dense = make_engine([make_model("qwen3")])
    answer = await collect(dense, wanting("a", PROMPT))
    assert answer.finish == "rejected"
    assert ROUTED_EXPERTS in answer.message
    await dense.close()
