"""However requests come, go and crowd, each ends once, with the answer that it gives alone."""

from concurrent.futures import Future
from itertools import accumulate, pairwise
from unittest import mock

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headway.generator import places, slots
from headway.generator.sampling import draw_key, uniform
from tests.contract.engine_contract import request
from tests.unit.loop_parts import CONTEXT, MODELS, PACKED, VOCAB, check_slots, finish, make_loop, submit

LONGEST = CONTEXT // 16


def words(seed, n):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (n,), generator=generator).tolist()


STEMS = [words(1, 20), words(2, 90), words(2, 90)[:50] + words(3, 60), words(4, 150)]

submits = st.tuples(
    st.just("submit"),
    st.integers(0, len(STEMS) - 1),
    st.integers(0, 30),  # tokens of its own
    st.integers(0, 3),  # of which text
    st.integers(1, 120),  # of the answer
    st.integers(0, 2),  # priority
    st.integers(0, 3),  # session
)
steps = st.tuples(st.just("steps"), st.integers(1, 12))
others = st.one_of(
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("update"), st.sampled_from(["keep", "recompute", "recompute"])),
)
programs = st.lists(st.one_of(submits, submits, submits, steps, others), min_size=12, max_size=40)


def drawn_as_alone(live, chunk, number, start, end):
    """Tokens start..end of an answer are what the version draws, with the log-probs that it gives."""
    n = len(live.request.prompt_ids)
    tokens = torch.tensor([[*live.request.prompt_ids, *chunk.token_ids]])
    with torch.inference_mode():
        logp = MODELS[number % 2](tokens).logits[0, n - 1 : -1].log_softmax(-1)
    key = draw_key(live.request.sampling.seed)
    for at in range(start, end):
        token = chunk.token_ids[at]
        assert abs(chunk.logprobs[at] - logp[at, token].item()) < 3e-4
        upto = logp[at].double().exp().cumsum(0)
        u = uniform(key, at)
        assert upto[token] - logp[at, token].exp() - 1e-4 <= u <= upto[token] + 1e-4


class Machine:
    def __init__(self, num_blocks, max_running):
        self.loop = make_loop(num_blocks, max_running)
        self.lives, self.chunks, self.mixed, self.aborted = [], [], set(), set()

    def submit(self, stem, n, text, answer, priority, session):
        prompt = (STEMS[stem] + words(10 + text, n))[: CONTEXT - 1]
        name = f"r{len(self.lives)}"
        item = request(
            name, prompt, max_tokens=answer, priority=priority, session=f"s{session}", seed=len(name) + n
        )
        live, chunks = submit(self.loop, item)
        self.lives.append(live)
        self.chunks.append(chunks)

    def steps(self, n):
        for _ in range(n):
            self.loop.step()
            check_slots(self.loop)

    def abort(self, which):
        self.aborted.add(f"r{which}")
        self.loop.abort([f"r{which}"])

    def end(self, session):
        self.loop.slots.end_session(f"s{session}")

    def update(self, kv):
        number = self.loop.policies.main.number + 1
        if kv == "keep":
            self.mixed |= {live.request.request_id for live in self.loop.places.running}
        self.loop.swap(PACKED[number % 2], 0, number, kv, Future())

    def check(self):
        for live, chunks in zip(self.lives, self.chunks, strict=True):
            (chunk,) = chunks  # exactly one, the terminal
            name = live.request.request_id
            assert chunk.finish == "length" or (chunk.finish == "aborted" and name in self.aborted)
            if chunk.finish == "length":
                assert len(chunk.token_ids) == live.room
            ends = list(accumulate((span.num_tokens for span in chunk.spans), initial=0))
            assert ends[-1] == len(chunk.token_ids)
            if name not in self.mixed:
                for span, (start, end) in zip(chunk.spans, pairwise(ends), strict=True):
                    drawn_as_alone(live, chunk, span.number, start, end)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(programs, st.integers(LONGEST, 2 * LONGEST), st.integers(1, 5), st.sampled_from([8, 64]))
def test_every_request_ends_once_with_the_answer_it_gives_alone(program, num_blocks, max_running, min_shared):
    with (
        mock.patch.multiple(slots, MIN_SHARED_TOKENS=min_shared, MIN_SPARED_TOKENS=min_shared),
        mock.patch.multiple(places, MIN_SHARED_TOKENS=min_shared, MIN_SPARED_TOKENS=min_shared),
    ):
        machine = Machine(num_blocks, max_running)
        for act, *how in program:
            getattr(machine, act)(*how)
            check_slots(machine.loop)
        finish(machine.loop)
        check_slots(machine.loop)
    machine.check()
