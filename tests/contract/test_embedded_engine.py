"""The embedded engine keeps the contract, and computes what transformers computes."""

import asyncio
import time
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.core.errors import EngineError, UserError
from headway.generator import loop as loop_module
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.shape import model_shape
from tests.contract.engine_contract import EngineContract, collect, collect_all, request
from tests.contract.engine_parts import count_prefilled

VOCAB, CONTEXT = 97, 64


def make_model(seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.15,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


MODELS = {number: make_model(number) for number in range(7)}


def read(manifest):
    model = MODELS[int(manifest)]
    yield from model.state_dict().items()


def make_engine(*, chunk_tokens=0, read_weights=read, decode_text=None, **settings):
    options = {
        "chunk_tokens": chunk_tokens,
        "max_running": 4,
        "max_context_tokens": CONTEXT,
        "prefill_chunk_tokens": 24,
        "threads": 1,
    }
    return EmbeddedEngine(
        MODELS[0],
        model_shape(MODELS[0].config.to_dict()),
        GeneratorSettings(**(options | settings)),
        replica="r0",
        decode_text=decode_text,
        read_weights=read_weights,
    )


class TestEmbeddedEngine(EngineContract):
    context = CONTEXT

    async def make_engine(self):
        return make_engine()

    def manifest(self, number):
        return str(number)


class TestEmbeddedEngineInChunks(EngineContract):
    context = CONTEXT

    async def make_engine(self):
        return make_engine(chunk_tokens=3)

    def manifest(self, number):
        return str(number)


@pytest.fixture
async def engine():
    engine = make_engine(chunk_tokens=1)
    yield engine
    await engine.close()


@torch.inference_mode()
def reference(number, prompt, answer, temperature=1.0):
    """Log-probs of an answer's tokens by a forward pass of transformers."""
    tokens = torch.tensor([[*prompt, *answer]])
    logits = MODELS[number](tokens).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1).gather(1, tokens[0, len(prompt) :, None])[:, 0]


def agree(logprobs, wanted):
    torch.testing.assert_close(torch.tensor(list(logprobs)), wanted, atol=2e-4, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_log_probs_are_those_of_transformers_at_the_sampling_temperature(engine, temperature):
    items = [request(f"r{i}", range(1, 3 + 9 * i), max_tokens=20, temperature=temperature) for i in range(6)]
    for item, answer in zip(items, await collect_all(engine, items), strict=True):
        agree(answer.logprobs, reference(0, item.prompt_ids, answer.token_ids, temperature))


async def test_greedy_answers_are_those_of_transformers(engine):
    prompts = [[5, 9, 3], [1], list(range(20, 41))]
    items = [request(str(i), prompt, temperature=0.0, max_tokens=20) for i, prompt in enumerate(prompts)]
    for prompt, answer in zip(prompts, await collect_all(engine, items), strict=True):
        wanted = MODELS[0].generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert list(answer.token_ids) == wanted[0, len(prompt) :].tolist()
        agree(answer.logprobs, reference(0, prompt, answer.token_ids))


class Hold:
    """A decode_text that slows the loop once answers have begun, and stops it while it is armed.

    An armed loop goes on when a job waits for it or was done, so that the job meets unfinished answers.
    """

    def __init__(self):
        self.engine = None
        self.armed_at = None

    def state(self):
        loop = self.engine._loop
        return loop.policies.main.number, len(loop.places.running)

    def arm(self):
        self.armed_at = self.state()

    def __call__(self, ids):
        if len(ids) >= 3:
            time.sleep(0.002)
        while self.armed_at == self.state() and not self.engine._loop.inbox:
            time.sleep(0.001)
        self.armed_at = None
        return ""


async def act_midway(items, act, **settings):
    """Call act(engine) when every item has begun to answer and none has ended; return answers and result."""
    hold = Hold()
    hold.engine = engine = make_engine(chunk_tokens=1, decode_text=hold, **settings)
    begun = [asyncio.Event() for _ in items]

    class Watched:
        def __init__(self, event):
            self.event = event

        async def generate(self, item):
            sampling = replace(item.sampling, stop_strings=("never",), max_tokens=1000)
            async for chunk in engine.generate(replace(item, sampling=sampling)):
                self.event.set()
                yield chunk

    pairs = zip(begun, items, strict=True)
    tasks = [asyncio.ensure_future(collect(Watched(event), item)) for event, item in pairs]
    for event in begun:
        await event.wait()
    assert not any(task.done() for task in tasks)
    hold.arm()
    result = await act(engine)
    return engine, await asyncio.gather(*tasks), result


async def update_midway(items, kv, **settings):
    return await act_midway(items, lambda engine: engine.apply(0, 1, "1", kv), **settings)


async def test_an_aborted_request_keeps_its_tokens():
    items = [request(f"r{i}", [1, 2, i + 3]) for i in range(4)]
    engine, answers, _ = await act_midway(items, lambda engine: engine.abort(["r1", "r2"]))
    assert [answer.finish for answer in answers] == ["length", "aborted", "aborted", "length"]
    for item, answer in zip(items, answers, strict=True):
        assert 0 < len(answer.token_ids) <= CONTEXT - 3
        agree(answer.logprobs, reference(0, item.prompt_ids, answer.token_ids))
    await engine.close()


async def test_after_an_update_with_recomputed_kv_every_token_agrees_with_its_version():
    # Behaviour check 24: the new weights' forward pass over the whole context, the old version's tokens too.
    items = [request(f"r{i}", range(1, 6 + 4 * i), group="g") for i in range(4)]
    engine, answers, pause = await update_midway(items, "recompute")
    assert pause > 0
    assert [len(answer.spans) for answer in answers] == [2] * 4
    for item, answer in zip(items, answers, strict=True):
        at = 0
        for span in answer.spans:
            wanted = reference(span.number, item.prompt_ids, answer.token_ids)
            agree(answer.logprobs[at : at + span.num_tokens], wanted[at : at + span.num_tokens])
            at += span.num_tokens
    await engine.close()


async def test_after_an_update_with_kept_kv_new_requests_agree_and_old_ones_go_on():
    items = [request(f"r{i}", range(1, 6), session="s", group="g") for i in range(3)]
    engine, answers, _ = await update_midway(items, "keep")
    for item, answer in zip(items, answers, strict=True):
        assert [span.number for span in answer.spans] == [0, 1]
        old = answer.spans[0].num_tokens
        agree(answer.logprobs[:old], reference(0, item.prompt_ids, answer.token_ids)[:old])
    # Neither the session nor the group may be served from KV of the old weights.
    longer = [*range(1, 6), *answers[0].token_ids[:10], 7]
    later = [request("n0", longer, session="s"), request("n1", range(1, 6), session="n", group="g")]
    for item, answer in zip(later, await collect_all(engine, later), strict=True):
        assert {span.number for span in answer.spans} == {1}
        agree(answer.logprobs, reference(1, item.prompt_ids, answer.token_ids))
    await engine.close()


async def test_an_update_of_some_parameters_changes_those_only():
    names = ["model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"]
    mixed = make_model(0)
    state = mixed.state_dict()
    for name in names:
        state[name].copy_(MODELS[1].state_dict()[name])
    engine = make_engine(read_weights=lambda _: [(name, state[name]) for name in names])
    await engine.apply(0, 1, "some", "recompute")
    answer = await collect(engine, request("a", [1, 2, 3], max_tokens=20))
    with torch.inference_mode():
        logits = mixed(torch.tensor([[1, 2, 3, *answer.token_ids]])).logits[0, 2:-1]
    agree(answer.logprobs, logits.log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0])
    await engine.close()


@pytest.fixture
def prefilled(monkeypatch):
    """Count the tokens that go through prefill."""
    return count_prefilled(monkeypatch)


async def test_a_groups_prompt_is_prefilled_once(prefilled):
    engine = make_engine(max_running=3, prefill_chunk_tokens=1000)
    items = [request(f"r{i}", range(1, 41), group="g") for i in range(8)]
    await collect_all(engine, items)
    assert sum(prefilled) == 39  # the last prompt token is fed by the first decode step
    await engine.close()


async def test_a_shared_system_prompt_is_prefilled_once(prefilled):
    engine = make_engine(prefill_chunk_tokens=1000)
    items = [request(f"r{i}", [*range(1, 31), 60 + i, 3, 4]) for i in range(4)]
    await collect_all(engine, items)
    assert sum(prefilled) == 32 + 3 * 2
    await engine.close()


async def test_the_next_turn_prefills_what_is_new_only(prefilled):
    engine = make_engine()
    first = await collect(engine, request("t1", range(1, 21), session="s"))
    assert first.num_resident_tokens == 27
    prefilled.clear()
    await collect(engine, request("t2", [*range(1, 21), *first.token_ids, 5, 6, 7], session="s"))
    assert sum(prefilled) == 31 - 1 - 27
    await engine.end_session("s")
    prefilled.clear()
    await collect(engine, request("t3", [*range(1, 21), *first.token_ids, 5, 6, 7], session="s"))
    assert sum(prefilled) == 30
    await engine.close()


async def test_kept_sessions_give_way_oldest_first(prefilled):
    engine = make_engine(max_running=1)  # two slots
    prompts = {name: list(range(start, start + 10)) for name, start in (("a", 1), ("b", 21), ("c", 41))}
    for name, prompt in prompts.items():
        await collect(engine, request(name, prompt, session=name, max_tokens=2))
    prefilled.clear()
    await collect(engine, request("c2", [*prompts["c"], 1], session="c", max_tokens=2))
    await collect(engine, request("b2", [*prompts["b"], 1], session="b", max_tokens=2))
    assert sum(prefilled) == 0
    await collect(engine, request("a2", [*prompts["a"], 1], session="a", max_tokens=2))
    assert sum(prefilled) == 10
    await engine.close()


async def test_a_rebuild_after_an_update_computes_a_groups_prompt_once(prefilled):
    items = [request(f"r{i}", range(1, 31), group="g", seed=i) for i in range(4)]
    engine, answers, _ = await update_midway(items, "recompute", prefill_chunk_tokens=1000)
    generated = [answer.spans[0].num_tokens for answer in answers]
    # The first prompt, then all of one context and what the other three do not share of theirs.
    assert sum(prefilled) <= 29 + 29 + sum(generated)
    await engine.close()


async def test_stop_strings_end_the_answer_after_the_completing_token():
    def text(ids):
        return "".join(chr(33 + token) for token in ids)

    engine = make_engine(decode_text=text)
    free = await collect(engine, request("a", [1, 2], temperature=0.0, max_tokens=20))
    written = text(free.token_ids)
    stop = written[4:7]
    item = request("b", [1, 2], temperature=0.0, max_tokens=20, stop_strings=("\n\n", stop))
    answer = await collect(engine, item)
    assert answer.finish == "stop"
    assert text(answer.token_ids) == written[: written.index(stop) + 3]
    await engine.close()


async def test_stop_strings_without_a_decoder_are_rejected(engine):
    answer = await collect(engine, request("a", [1], stop_strings=("x",)))
    assert answer.finish == "rejected"


async def test_a_second_request_of_the_same_id_is_rejected(engine):
    answers = await collect_all(engine, [request("a", [1, 2], max_tokens=60) for _ in range(2)])
    assert sorted(answer.finish for answer in answers) == ["length", "rejected"]


async def test_when_the_loop_dies_every_request_gets_the_original_error(monkeypatch):
    engine = make_engine()

    def fail(*_):
        raise ZeroDivisionError("out of tokens")

    monkeypatch.setattr(loop_module, "draw_tokens", fail)
    items = [request(f"r{i}", [1, 2, i + 3]) for i in range(9)]
    for answer in await collect_all(engine, items):
        assert answer.finish == "lost"
        assert "ZeroDivisionError: out of tokens" in answer.message
    late = await collect(engine, request("late", [1, 2]))
    assert late.finish == "lost"
    assert "out of tokens" in late.message
    with pytest.raises(EngineError, match="out of tokens") as caught:
        await engine.apply(0, 1, "1", "keep")
    assert "test_embedded_engine.py" in str(caught.value.value)  # the original traceback
    await engine.close()


async def test_weights_that_compute_nan_lose_requests_and_the_next_version_heals():
    broken = make_model(0)
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
    models = {"broken": broken, "good": MODELS[1]}
    engine = make_engine(read_weights=lambda manifest: models[manifest].state_dict().items())
    await engine.apply(0, 1, "broken", "recompute")
    for answer in await collect_all(engine, [request(f"r{i}", range(1, 5 + i)) for i in range(8)]):
        assert answer.finish == "lost"
        assert "version 0.1" in answer.message
    await engine.apply(0, 2, "good", "recompute")
    items = [request(f"s{i}", [1, 2 + i]) for i in range(8)]
    for item, answer in zip(items, await collect_all(engine, items), strict=True):
        agree(answer.logprobs, reference(1, item.prompt_ids, answer.token_ids))
    await engine.close()


async def test_apply_after_close_is_an_error():
    engine = make_engine()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.apply(0, 1, "1", "keep")


async def test_a_context_longer_than_the_model_was_made_for_is_refused():
    with pytest.raises(UserError, match="64 positions"):
        make_engine(max_context_tokens=65)


async def test_threads_change_between_steps(engine):
    engine.set_threads(1)
    assert (await collect(engine, request("a", [1, 2]))).finish == "length"


async def test_a_stop_string_may_begin_in_the_part_of_the_answer_that_is_in_the_prompt():
    engine = make_engine(decode_text=lambda ids: " ".join(map(str, ids)))
    free = await collect(engine, request("a", [1, 2, 3], temperature=0.0, max_tokens=9))
    ids = list(free.token_ids)
    stop = " ".join(map(str, ids[3:6]))
    for begun in range(7):
        item = request(
            f"b{begun}", [1, 2, 3, *ids[:begun]], temperature=0.0, max_tokens=9 - begun, stop_strings=(stop,),
            num_answer_tokens=begun,
        )  # fmt: skip
        rest = await collect(engine, item)
        first = next(n for n in range(1, 10) if stop in " ".join(map(str, ids[:n])))
        assert first == 6
        assert ids[:begun] + list(rest.token_ids) == (ids[:6] if begun < 6 else ids[:7])
        assert rest.finish == "stop"
    prompt_only = request("c", [1, 2, 3, *ids[:5]], temperature=0.0, max_tokens=4, stop_strings=(stop,))
    assert (await collect(engine, prompt_only)).finish == "length"  # the prompt is no part of the answer
    await engine.close()


async def test_an_answer_cannot_begin_before_its_prompt():
    engine = make_engine()
    for count in (3, 4, -1):
        assert (await collect(engine, request("a", [1, 2, 3], num_answer_tokens=count))).finish == "rejected"
    await engine.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 2.5),
        ("top_k", True),
        ("max_tokens", 2.5),
        ("seed", "1"),
        ("temperature", 1e-45),
        ("temperature", None),
        ("top_p", "0.9"),
        ("min_p", 2.0),
    ],
)
async def test_a_request_of_nonsense_is_rejected_and_ends_nothing_else(engine, field, value):
    bad = await collect(engine, request("bad", [1, 2], **{field: value}))
    assert bad.finish == "rejected"
    assert field in bad.message
    assert (await collect(engine, request("good", [1, 2], max_tokens=3))).finish == "length"


async def test_the_load_is_told_at_once_when_an_abort_ends_the_last_request(engine):
    running = asyncio.ensure_future(collect(engine, request("a", [1, 2], max_tokens=1000)))
    await engine.end_session("nobody's")  # once this is done, the request was taken in
    await engine.abort(None)
    await running
    await engine.end_session("nobody's")  # a job after the abort's: what it told is there
    assert engine.stats().num_running == 0
