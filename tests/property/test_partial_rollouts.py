"""A rollout that is parked, resumed and moved to other lives at random is the rollout that never was.

The engine is the real one with a tiny random model; greedy, so that the tokens are the model's alone.
"""

import asyncio
import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from headway.core.events import RolloutEnded, RolloutParked, TurnEnded
from headway.core.protocols import Outcome
from headway.core.records import Message
from headway.environments.generation import GenerationLimits
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.shape import model_shape
from headway.renderers.chat import Renderer
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import write_tokenizer

LIMITS = GenerationLimits(max_answer_tokens=20, max_context_tokens=250)
NUM_TURNS = 3
names = itertools.count()


async def play(chat, sandbox):
    """Answers and files; each answer shapes what is said next."""
    said = []
    for turn in range(NUM_TURNS):
        reply = await chat.say([Message("user", f"{turn}:{sum(map(ord, ''.join(said))) % 97}")])
        said.append(reply.text)
        await sandbox.write(f"note{turn}", reply.text.encode("utf-8", "surrogatepass"))
    notes = [(await sandbox.read(f"note{turn}")).hex() for turn in range(NUM_TURNS)]
    return Outcome({"notes": notes})


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return Renderer(folder)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class Lives:
    """Runs the one rollout, interrupted as told."""

    def __init__(self, folder, renderer, model):
        self.folder, self.renderer, self.model = folder, renderer, model

    def engine(self, chunk_tokens):
        options = GeneratorSettings(
            threads=1, max_running=2, max_context_tokens=250, max_answer_tokens=20, chunk_tokens=chunk_tokens
        )
        return EmbeddedEngine(
            self.model, model_shape(self.model.config.to_dict()), options, replica="replica-0",
            decode_text=self.renderer.decode, read_weights=lambda manifest: [],
        )  # fmt: skip

    async def play(self, moments, chunk_tokens=4):
        """Park after each of `moments` seconds; then resume here, or in another life."""
        partial, attempt = "", 1
        moments = list(moments)
        while True:
            engine = self.engine(chunk_tokens)
            stage = opened(
                self.folder, {"replica-0": engine}, self.renderer, play, limits=LIMITS, resume="replay",
                name=f"life{next(names)}",
            )  # fmt: skip
            async with stage as s:
                s.start("r1", attempt, temperature=0.0, partial=partial)
                partial = await self.one_life(s, attempt, moments)
                ended = [event for event in s.events if isinstance(event, RolloutEnded)]
                if not partial:
                    ended = ended or [await s.until(RolloutEnded)]
                    turns = [event for event in s.events if isinstance(event, TurnEnded)]
                    await engine.close()
                    return ended[0], s.payload(ended[0].payload), turns
            await engine.close()
            attempt += 1

    async def one_life(self, s, attempt, moments):
        """Return the payload that another life goes on from, or nothing."""
        while moments:
            wait_s, moves = moments.pop(0)
            await asyncio.sleep(wait_s)
            num_parked = s.kinds().count("RolloutParked")
            s.park("r1", attempt)
            while s.kinds().count("RolloutParked") == num_parked:
                if "RolloutEnded" in s.kinds():
                    return ""
                await asyncio.sleep(0.0005)
            parked = [event for event in s.events if isinstance(event, RolloutParked)][-1]
            assert 0 <= parked.num_unfinished_tokens <= 20
            if moves:
                return parked.payload
            s.resume("r1", attempt)
        return ""


@pytest.fixture(scope="module")
def lives(tmp_path_factory, renderer, model):
    return Lives(tmp_path_factory.mktemp("lives"), renderer, model)


@pytest.fixture(scope="module")
def unbroken(lives):
    return asyncio.run(lives.play([], chunk_tokens=0))


def check(payload, ended):
    (sample,) = payload.samples
    assert len(sample.token_ids) == len(sample.trainable) == len(sample.logprobs) <= 250
    assert sum(span.num_tokens for span in sample.spans) == sum(sample.trainable) == ended.num_tokens
    assert tuple(sample.spans) == ended.spans
    for logprob, trained in zip(sample.logprobs, sample.trainable, strict=True):
        assert logprob <= 0 if trained else logprob == 0


def test_the_unbroken_rollout_has_several_turns_and_many_tokens(unbroken):
    ended, payload, turns = unbroken
    check(payload, ended)
    assert len(turns) == NUM_TURNS
    assert ended.num_tokens > 30


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    moments=st.lists(st.tuples(st.floats(0, 0.03), st.booleans()), min_size=1, max_size=6),
    chunk_tokens=st.sampled_from([0, 1, 4]),
)
def test_parked_anywhere_any_number_of_times_it_ends_the_same(lives, unbroken, moments, chunk_tokens):
    ended, payload, _ = asyncio.run(lives.play(moments, chunk_tokens))
    whole_ended, whole, _ = unbroken
    check(payload, ended)
    (sample,), (wanted,) = payload.samples, whole.samples
    assert sample.token_ids == wanted.token_ids
    assert sample.trainable == wanted.trainable
    assert list(sample.logprobs) == pytest.approx(list(wanted.logprobs), abs=2e-4)
    assert (payload.outcome, payload.transcript) == (whole.outcome, whole.transcript)
    assert ended.spans == whole_ended.spans
    assert (ended.num_turns, ended.num_prompt_tokens, ended.truncated) == (
        whole_ended.num_turns,
        whole_ended.num_prompt_tokens,
        whole_ended.truncated,
    )
