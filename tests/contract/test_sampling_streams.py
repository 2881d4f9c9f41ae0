"""What the engine tells beside its tokens: kept ids, log-probs of the model, log-probs of the prompt."""

import asyncio
import math
from array import array
from dataclasses import replace

import numpy
import pytest
import torch

from headway.core.kept import Kept, grown
from headway.core.records import KEPT_IDS, MODEL_LOGPROBS, PROMPT_LOGPROBS
from tests.contract.engine_contract import collect_all, request
from tests.contract.engine_parts import make_engine
from tests.unit.family_models import make_model

PROMPT = list(range(3, 33))


@pytest.fixture(scope="module")
def models():
    return [make_model("llama", seed) for seed in (0, 1)]


def wanting(name, prompt, *streams, **options):
    return replace(request(name, prompt, **options), streams=streams)


async def chunks_of(engine, item):
    """Return an answer's tokens, log-probs, kept ids, model log-probs and terminal chunk."""
    tokens, logprobs, model, kept, last = array("i"), array("f"), [], None, None
    async for chunk in engine.generate(item):
        kept = grown(kept, len(tokens), chunk.streams, len(chunk.token_ids))
        tokens += chunk.token_ids
        logprobs += chunk.logprobs
        if (stream := chunk.streams.get(MODEL_LOGPROBS)) is not None:
            assert (stream.axis, stream.shape) == ("sampled", (len(chunk.token_ids),))
            model += numpy.frombuffer(stream.data, stream.dtype).tolist()
        last = chunk
    return tokens, logprobs, kept, model, last


@torch.inference_mode()
def next_logits(model, tokens):
    """Logits after each token, f64."""
    return model(torch.tensor([list(tokens)])).logits[0].double()


def prompt_logprobs(chunk):
    stream = chunk.streams[PROMPT_LOGPROBS]
    assert (stream.axis, stream.dtype) == ("prompt", "float32")
    return numpy.frombuffer(stream.data, stream.dtype).tolist()


def check_prompt(model, prompt, chunk):
    found = prompt_logprobs(chunk)
    assert len(found) == len(prompt)
    assert math.isnan(found[0])
    wanted = next_logits(model, prompt).log_softmax(-1)
    each = [wanted[at, token].item() for at, token in enumerate(prompt[1:])]
    assert found[1:] == pytest.approx(each, abs=1e-4)


@pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.3}, {"top_p": 0.9, "top_k": 9}])
async def test_kept_ids_come_with_each_chunk_and_give_the_log_prob(models, cut):
    engine = make_engine(models, chunk_tokens=3)
    both = KEPT_IDS, MODEL_LOGPROBS
    items = [
        wanting(f"r{i}", PROMPT[i:9], *both, seed=i, temperature=0.8, max_tokens=8, **cut) for i in range(6)
    ]
    for item, answer in zip(
        items, await asyncio.gather(*(chunks_of(engine, item) for item in items)), strict=True
    ):
        tokens, logprobs, kept, model, _ = answer
        raw = next_logits(models[0], [*item.prompt_ids, *tokens])
        assert len(kept.counts) == len(tokens) == len(model) == 8
        for at, (token, ids) in enumerate(zip(tokens, kept.rows(), strict=True)):
            row = raw[len(item.prompt_ids) - 1 + at]
            over = (row[list(ids)] / 0.8).log_softmax(-1)
            assert logprobs[at] == pytest.approx(over[list(ids).index(token)].item(), abs=1e-4)
            assert model[at] == pytest.approx(row.log_softmax(-1)[token].item(), abs=1e-4)
    await engine.close()


async def test_more_ids_than_may_be_kept_are_left_out_where_they_are_asked_for(models):
    engine = make_engine(models, max_kept_ids=2)
    tokens, logprobs, kept, *_ = await chunks_of(engine, wanting("a", PROMPT, KEPT_IDS, top_p=0.999))
    assert set(kept.counts) == {2}
    assert max(logprobs) < 0.0
    free = await chunks_of(engine, request("b", PROMPT, top_p=0.999))
    assert free[2] is None
    assert free[0] != tokens
    await engine.close()


async def test_greedy_and_whole_draws_keep_the_whole_vocabulary(models):
    engine = make_engine(models)
    for cut in ({}, {"temperature": 0.0, "top_k": 4}):
        _, _, kept, _, _ = await chunks_of(engine, wanting("a", PROMPT, KEPT_IDS, **cut))
        assert kept == Kept.whole(8)
    await engine.close()


async def test_the_rest_of_the_batch_changes_no_truncated_draw_and_asking_changes_none(models):
    engine = make_engine(models)
    cut = {"top_p": 0.8, "top_k": 20, "min_p": 0.01, "seed": 7, "max_tokens": 20}
    items = [wanting(f"r{i}", [i + 1, 5, 9], KEPT_IDS, **cut) for i in range(6)]
    others = [request(f"o{i}", [i + 1, 6], temperature=0.5 * i, max_tokens=9) for i in range(4)]
    together = await collect_all(engine, [*items, *others])
    for item, answer in zip(items, together, strict=False):
        alone = (await collect_all(engine, [replace(item, streams=())]))[0]
        assert alone.token_ids == answer.token_ids
        begun = array("i", answer.token_ids[:6])
        rest = replace(item, prompt_ids=item.prompt_ids + begun, num_answer_tokens=6)
        going_on = (await collect_all(engine, [rest]))[0]
        assert begun + going_on.token_ids[:14] == answer.token_ids
    await engine.close()


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3", "qwen3 moe"])
@pytest.mark.parametrize("chunk", [1, 7, 512])
async def test_prompt_log_probs_equal_transformers_packed_chunked_and_in_groups(variant, chunk):
    model = make_model(variant)
    engine = make_engine([model], prefill_chunk_tokens=chunk)
    items = [
        wanting(
            f"m{i}",
            PROMPT[: 30 - 9 * (i % 3)],
            PROMPT_LOGPROBS,
            group="g",
            seed=i,
            max_tokens=1 + 4 * (i % 2),
        )
        for i in range(6)
    ]
    items += [request(f"o{i}", PROMPT, group="g", max_tokens=6) for i in range(3)]
    for item, answer in zip(items, await collect_all(engine, items), strict=True):
        assert answer.finish == "length"
        if item.streams:
            check_prompt(model, item.prompt_ids, answer)
        else:
            assert not answer.streams
    await engine.close()


async def test_a_prefix_that_is_cached_is_computed_all_the_same(models):
    engine = make_engine(models)
    await collect_all(engine, [request("a", PROMPT, session="s")])
    for name, session in (("b", "s"), ("c", "t")):  # its own session's KV, and another's
        item = wanting(name, PROMPT, PROMPT_LOGPROBS, session=session, max_tokens=1)
        check_prompt(models[0], PROMPT, (await collect_all(engine, [item]))[0])
    await engine.close()


async def test_a_prompt_of_one_token_has_nothing_but_nan(models):
    engine = make_engine(models)
    (answer,) = await collect_all(engine, [wanting("a", [5], PROMPT_LOGPROBS, max_tokens=1)])
    assert [math.isnan(value) for value in prompt_logprobs(answer)] == [True]
    await engine.close()


async def test_recomputed_kv_has_prompt_log_probs_of_the_new_weights(models):
    engine = make_engine(models, chunk_tokens=1)
    item = wanting("a", PROMPT, PROMPT_LOGPROBS, max_tokens=30)
    answer = asyncio.ensure_future(collect_all(engine, [item]))
    while not engine.stats().num_running:  # noqa: ASYNC110, the engine has no event for it
        await asyncio.sleep(0.001)
    await engine.apply(0, 1, "1", "recompute")
    (ended,) = await answer
    check_prompt(models[1 if ended.spans[-1].number else 0], PROMPT, ended)
    await engine.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_p": 1.5}, "min_p must be from 0 to 1"),
        ({"min_p": -0.1}, "min_p must be from 0 to 1"),
        ({"min_p": math.nan}, "min_p must be from 0 to 1"),
        ({"top_p": 0.0}, "out of range"),
        ({"top_k": -1}, "out of range"),
    ],
)
async def test_what_is_out_of_range_is_rejected_with_a_reason(models, options, words):
    engine = make_engine(models)
    (answer,) = await collect_all(engine, [request("a", PROMPT, **options)])
    assert answer.finish == "rejected"
    assert words in answer.message
    await engine.close()


async def test_an_unknown_stream_is_named_and_what_there_is(models):
    engine = make_engine(models)
    (answer,) = await collect_all(engine, [wanting("a", PROMPT, "kept_idz")])
    assert answer.finish == "rejected"
    assert "kept_idz" in answer.message
    assert KEPT_IDS in answer.message
    await engine.close()
