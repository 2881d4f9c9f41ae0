"""What one request or policy does to an engine, others do not notice: odd values, and values not finite."""

import asyncio
import math
import random
import re
from array import array
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from headway.generator.decoder import Decoder, Piece
from headway.generator.kv import KvCache
from headway.generator.packing import pack_weights
from headway.generator.policies import Served
from headway.models.shape import model_shape
from tests.contract.engine_contract import collect, request
from tests.contract.engine_parts import make_engine
from tests.unit.family_models import make_model

ROOM = {"max_position_embeddings": 256}
LENGTHS = (10, 20, 180, 30, 15, 12)
SETTINGS = {"max_running": 8, "max_context_tokens": 256, "prefill_chunk_tokens": 32}


@pytest.fixture(scope="module")
def models():
    """Good weights, weights of nothing but NaN, and other good ones."""
    found = [make_model("llama", seed, **ROOM) for seed in range(3)]
    with torch.no_grad():
        for parameter in found[1].parameters():
            parameter.fill_(float("nan"))
    return found


@pytest.fixture(scope="module", params=[["q_proj", "v_proj"], ["k_proj"]], ids="-".join)
def overflowing(request, tmp_path_factory):
    """An adapter of finite weights whose products are not."""
    place = tmp_path_factory.mktemp("overflowing")
    config = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=2, target_modules=request.param)
    adapted = get_peft_model(make_model("llama", 0, **ROOM), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(1e30 * torch.randn_like(parameter))
    adapted.save_pretrained(place)
    return place


def prompts(lengths, seed):
    draws = random.Random(seed)
    return [[draws.randrange(97) for _ in range(n)] for n in lengths]


def answers_of(made):
    return [(each.finish, list(each.token_ids)) for each in made]


async def run_all(engine, name, lengths=LENGTHS, seed=0, **options):
    items = [
        request(f"{name}{i}", ids, max_tokens=9, **options) for i, ids in enumerate(prompts(lengths, seed))
    ]
    return await asyncio.gather(*(collect(engine, item) for item in items))


def is_all_finite(engine):
    return bool(engine._loop.cache._values.isfinite().all())


@pytest.mark.parametrize("kv", ["keep", "recompute"])
@pytest.mark.parametrize("aborts", [True, False])
async def test_a_version_that_computes_nan_leaves_nothing_to_the_next(models, kv, aborts):
    clean = make_engine(models, **SETTINGS)
    await clean.apply(0, 2, "2", kv)
    expected = answers_of(await run_all(clean, "good"))
    await clean.close()
    engine = make_engine(models, **SETTINGS)
    for turn in range(6):
        await engine.apply(0, 2 * turn + 1, "1", kv)
        bad = asyncio.ensure_future(run_all(engine, f"bad{turn}-", [200] * 4))
        while aborts and not engine.stats().num_running and not bad.done():  # noqa: ASYNC110, the engine has no event for it
            await asyncio.sleep(0)
        if aborts:
            await engine.abort(None)
        for answer in await bad:
            assert answer.finish in (("aborted", "lost") if aborts else ("lost",))
            assert not len(answer.token_ids)
            if answer.finish == "lost":
                assert f"version 0.{2 * turn + 1} computed values that are not finite" in answer.message
        assert is_all_finite(engine)
        await engine.apply(0, 2 * turn + 2, "2", kv)
        assert answers_of(await run_all(engine, f"good{turn}-")) == expected
    await engine.close()


async def test_an_adapter_that_overflows_spoils_nobody_elses_answers(models, overflowing):
    engine = make_engine(models, **SETTINGS)
    await engine.load_adapter("huge", 3, 1, str(overflowing), "keep")

    async def as_policy(policy, name, lengths, seed=0):
        items = [
            replace(request(f"{name}-{i}", ids, max_tokens=20), policy=policy)
            for i, ids in enumerate(prompts(lengths, seed))
        ]
        return await asyncio.gather(*(collect(engine, item) for item in items))

    expected = answers_of(await as_policy("main", "first", LENGTHS))
    assert {finish for finish, _ in expected} == {"length"}
    for turn in range(8):
        # The same prompts, so that a shared prefix would be found; one token has no prefill.
        good, bad = await asyncio.gather(
            as_policy("main", f"good{turn}", LENGTHS),
            as_policy("huge", f"bad{turn}", (150, 150, 1, 180), seed=turn % 2),
        )
        assert answers_of(good) == expected
        for answer in bad:
            assert answer.finish == "lost"
            assert re.match("version 3.1 of adapter 'huge' computed .* not finite", answer.message)
        assert is_all_finite(engine)
    await engine.close()


def test_infinities_that_no_later_layer_meets_are_seen():
    """A key whose every score is -inf is attended to by nobody, so that only its own layer tells of it."""
    model = make_model("llama", 0, **ROOM)
    shape = model_shape(model.config.to_dict())
    with torch.no_grad():
        keys = model.model.layers[0].self_attn.k_proj.weight.zero_()
        keys[0] = 3e38
    cache = KvCache(shape, 2, 256, torch.device("cpu"))
    decoder = Decoder(shape, pack_weights(shape, model.state_dict().items()), 256)
    decoder.prefill([Piece(0, 0, array("i", [5, 7]), Served("main", 0, 0))], cache)
    last, _ = cache.layer(shape.num_layers - 1)
    assert last.isfinite().all()
    assert not cache.is_finite(0, 0, 2)
    assert cache.is_finite(0, 2, 9)
    assert cache.is_finite(1, 0, 9)
    assert cache.are_finite([1, 5]) == [False, True]


async def test_no_value_of_a_request_ends_the_engine(models):
    engine = make_engine(models, **SETTINGS)
    (expected,) = await run_all(engine, "first", [9])
    odd = {
        "temperature": (5e-324, 1e-6, 1e-40, 1e6, 1e300, 10**400, math.nan, "1"),
        "top_p": (1e-320, math.nan, None),
        "min_p": (1e-320, math.nan, None),
        "top_k": (10**30, 2.5, None),
        "seed": (-(10**40), 10**5000, None),
        "max_tokens": (10**30, 2.5, None),
        "stop_ids": ((10**30,), 5),
        "stop_strings": (("\ud800",), 5),
    }
    for name, values in odd.items():
        for at, value in enumerate(values):
            item = request(f"{name}{at}", [1, 2, 3], **{"max_tokens": 3, name: value})
            answer = await collect(engine, item)
            assert answer.finish in ("length", "rejected"), (name, value, answer.message)
            if answer.finish == "rejected":
                assert name in answer.message
    for changes in ({"request_id": ["x"]}, {"priority": "x"}, {"streams": ([],)}, {"prompt_ids": [1.5]}):
        (name,) = changes
        answer = await collect(engine, replace(request("x", [1, 2, 3]), **changes))
        assert (answer.finish, name in answer.message) == ("rejected", True)
    assert answers_of(await run_all(engine, "last", [9])) == answers_of([expected])
    await engine.close()


async def test_the_stats_are_right_when_the_last_request_has_ended(models):
    engine = make_engine(models, **SETTINGS)
    (answer,) = await run_all(engine, "a", [20])
    stats = engine.stats()
    assert (answer.finish, stats.num_running, stats.tokens_per_s) == ("length", 0, 0.0)
    answer = asyncio.ensure_future(collect(engine, request("b", range(90), max_tokens=150)))
    while not engine.stats().num_running:  # noqa: ASYNC110, the engine has no event for it
        await asyncio.sleep(0)
    await engine.abort(None)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_used_fraction) == (0, 0, 0.0)
    assert (await answer).finish == "aborted"
    await engine.close()
