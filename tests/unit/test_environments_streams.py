"""Streams that an engine sends beside the tokens reach the sample, and are asked for in training alone."""

from array import array
from dataclasses import replace

import numpy
import pytest

from headway.core.events import RolloutEnded, RolloutParked
from headway.core.kept import Kept
from headway.core.protocols import Outcome
from headway.core.records import KEPT_IDS, ROUTED_EXPERTS, Message, Stream, Turn, VersionSpan
from headway.environments.generation import GenerationLimits
from headway.renderers.chat import Renderer
from headway.renderers.recorder import TurnRecorder
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import ScriptedEngine, write_tokenizer

LIMITS = GenerationLimits(6, 256, streams=(ROUTED_EXPERTS,))


class RoutingEngine(ScriptedEngine):
    """Sends the token at each position to the expert of its own number."""

    async def generate(self, request):
        tokens = array("i", request.prompt_ids)
        async for chunk in super().generate(request):
            tokens += chunk.token_ids
            wanted = chunk.finish is not None and ROUTED_EXPERTS in request.streams
            yield replace(chunk, streams=stream_of(tokens)) if wanted else chunk


class TruncatingEngine(ScriptedEngine):
    """Keeps each token and the one after it, and says so with every chunk."""

    async def generate(self, request):
        async for chunk in super().generate(request):
            wanted = KEPT_IDS in request.streams
            yield replace(chunk, streams=kept_of(chunk.token_ids).streams()) if wanted else chunk


def kept_of(tokens):
    kept = Kept()
    for token in tokens:
        kept.append((token, token + 1))
    return kept


def sampled(sample):
    return [token for token, flag in zip(sample.token_ids, sample.trainable, strict=True) if flag]


def stream_of(tokens):
    values = numpy.array(tokens, "int16").reshape(-1, 1, 1)
    return {ROUTED_EXPERTS: Stream("token", "int16", values.shape, values.tobytes())}


@pytest.fixture
def renderer(tmp_path):
    write_tokenizer(tmp_path / "model")
    return Renderer(tmp_path / "model")


async def talk(chat, sandbox):
    for ask in "xyz":
        await chat.say([Message("user", ask)])
    return Outcome({})


async def test_a_sample_has_the_streams_of_its_last_answer(tmp_path, renderer):
    engine = RoutingEngine()
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, limits=LIMITS) as s:
        s.start()
        ended = await s.until(RolloutEnded)
    (sample,) = s.payload(ended.payload).samples
    assert sample.streams == stream_of(sample.token_ids)
    assert len(engine.requests) == 3


async def test_they_survive_parking_and_another_life(tmp_path, renderer):
    engine = RoutingEngine()
    options = {"limits": LIMITS, "resume": "replay"}
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, **options) as s:
        parked = await s.parked_in(engine, "r1.1.2", 3)
        assert isinstance(parked, RolloutParked)
        s.cancel()
    written = s.payload(parked.payload).samples
    assert [bool(sample.streams) for sample in written] == [False, True, False]  # the newest whole turn's
    engine.pause_at.clear()
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, name="w1", **options) as s:
        s.start(attempt=2, partial=parked.payload)
        ended = await s.until(RolloutEnded)
    (sample,) = s.payload(ended.payload).samples
    assert sample.streams == stream_of(sample.token_ids)


async def test_an_evaluation_does_not_ask_for_them(tmp_path, renderer, monkeypatch):
    engine = RoutingEngine()
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, limits=LIMITS) as s:
        start = s.host.start

        def evaluate(command, task):
            start(replace(command, purpose="eval"), task)

        monkeypatch.setattr(s.host, "start", evaluate)
        s.start()
        await s.until(RolloutEnded)
    assert {request.streams for request in engine.requests} == {()}


def test_a_stream_that_does_not_cover_the_branch_is_refused():
    recorder = TurnRecorder()
    ids, logprobs = array("i", [4, 5]), array("f", [-1.0, -1.0])
    turn = Turn(-1, array("i", [1, 2, 3]), ids, logprobs, [VersionSpan(0, 0, 2)], "stop", 1.0, stream_of(ids))
    with pytest.raises(ValueError, match="a row for each of 5 tokens"):
        recorder.add(turn)


async def test_kept_ids_are_joined_over_turns(tmp_path, renderer):
    engine = TruncatingEngine()
    limits = GenerationLimits(6, 256, streams=(KEPT_IDS,))
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, limits=limits) as s:
        s.start()
        ended = await s.until(RolloutEnded)
    (sample,) = s.payload(ended.payload).samples
    assert Kept.of(sample.streams) == kept_of(sampled(sample))


async def test_kept_ids_of_a_turn_that_was_cut_off_survive_parking_and_another_life(tmp_path, renderer):
    engine = TruncatingEngine()
    options = {"limits": GenerationLimits(6, 256, streams=(KEPT_IDS,)), "resume": "replay"}
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, **options) as s:
        parked = await s.parked_in(engine, "r1.1.2", 3)
        s.cancel()
    written = s.payload(parked.payload).samples
    assert [Kept.of(sample.streams) for sample in written] == [kept_of(sampled(sample)) for sample in written]
    assert len(sampled(written[-1])) == 3
    engine.pause_at.clear()
    async with opened(tmp_path, {"replica-0": engine}, renderer, talk, name="w1", **options) as s:
        s.start(attempt=2, partial=parked.payload)
        ended = await s.until(RolloutEnded)
    (sample,) = s.payload(ended.payload).samples
    assert len(sampled(sample)) > 3
    assert Kept.of(sample.streams) == kept_of(sampled(sample))


def test_branches_have_the_kept_ids_of_the_tokens_that_they_train():
    recorder = TurnRecorder()
    for parent, tokens in ((-1, [4, 5]), (0, [6]), (0, [7, 8])):
        ids, logprobs = array("i", tokens), array("f", [-1.0] * len(tokens))
        spans, streams = [VersionSpan(0, 0, len(tokens))], kept_of(tokens).streams()
        recorder.add(Turn(parent, array("i", [1]), ids, logprobs, spans, "stop", 1.0, streams))
    first, second = recorder.samples()
    assert Kept.of(first.streams) == kept_of([4, 5, 6])
    assert Kept.of(second.streams) == kept_of([7, 8])


def test_kept_ids_that_do_not_cover_the_turn_are_refused():
    turn = Turn(
        -1, array("i", [1]), array("i", [4, 5]), array("f", [-1.0, -1.0]), [VersionSpan(0, 0, 2)], "stop", 1.0
    )
    turn.streams = kept_of([4]).streams()
    with pytest.raises(ValueError, match="a count for each of 2 sampled tokens"):
        TurnRecorder().add(turn)
