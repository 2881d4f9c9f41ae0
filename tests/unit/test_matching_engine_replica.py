"""The processor-sharing replica: hand-computed times, conservation, and nobody faster than alone."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.matching.engine_replica import Replica, Request


@dataclass
class Engine:
    """Affine in requests and resident tokens."""

    base_s: float = 0.0
    row_s: float = 0.0
    token_s: float = 0.0
    prefill_base_s: float = 0.0
    prefill_token_s: float = 0.0
    max_running: int = 100
    kv_tokens: int = 0
    offload_tokens: int = 0
    separate_prefill: bool = False
    prefill_lines: int = 1
    tokens_per_iteration: float = 1.0

    def decode_s(self, num_running, resident_tokens):
        return self.base_s + self.row_s * num_running + self.token_s * resident_tokens

    def prefill_s(self, num_tokens, context_tokens):
        return self.prefill_base_s + self.prefill_token_s * num_tokens


class Machine:
    """A replica, a clock, and when each request ended."""

    def __init__(self, engine):
        self.now_s = 0.0
        self.heap = []
        self.count = 0
        self.ends = {}
        self.replica = Replica("g0", engine, self, self.ended, (0, 0))

    def at(self, delay_s, action, argument=None):
        self.count += 1
        heapq.heappush(self.heap, (self.now_s + delay_s, self.count, action, argument))

    def ended(self, request):
        self.ends[request.rollout] = self.now_s

    def ask(self, at_s, name, num_tokens, *, prompt=0, group=None, priority=0):
        request = Request(name, group or name, priority)
        request.prompt_tokens = request.context_tokens = prompt
        self.at(at_s - self.now_s, self.submit, (request, num_tokens))
        return request

    def submit(self, what):
        request, num_tokens = what
        request.ask(num_tokens)
        self.replica.submit(request)

    def play(self, until_s=float("inf")):
        while self.heap and self.heap[0][0] <= until_s:
            self.now_s, _, action, argument = heapq.heappop(self.heap)
            action() if argument is None else action(argument)
        if until_s < float("inf"):
            self.now_s = until_s
        return self


def test_one_request_takes_its_tokens_times_the_iteration():
    machine = Machine(Engine(base_s=0.02))
    machine.ask(1.0, "a", 50)
    assert machine.play().ends == {"a": pytest.approx(2.0)}


def test_two_requests_share_from_the_moment_that_the_second_comes():
    machine = Machine(Engine(row_s=0.1))
    machine.ask(0.0, "a", 10)  # five tokens alone at 0.1 s, five together at 0.2 s
    machine.ask(0.5, "b", 5)
    assert machine.play().ends == {"a": pytest.approx(1.5), "b": pytest.approx(1.5)}


def test_who_ends_leaves_its_part_to_the_others():
    machine = Machine(Engine(row_s=0.1))
    machine.ask(0.0, "short", 5)  # to 1.0 at 0.2 s a token
    machine.ask(0.0, "long", 10)  # and the other five at 0.1 s
    assert machine.play().ends == {"short": pytest.approx(1.0), "long": pytest.approx(1.5)}


def test_resident_tokens_are_integrated_at_their_midpoint():
    machine = Machine(Engine(base_s=0.01, token_s=1e-4))
    machine.ask(0.0, "a", 100, prompt=1000)
    # 100 iterations over 1000 to 1100 tokens, on average 1050
    assert machine.play().ends == {"a": pytest.approx(100 * (0.01 + 1e-4 * 1050))}


def test_an_end_in_between_changes_nothing_of_what_was_integrated():
    alone = Machine(Engine(base_s=0.01, token_s=1e-4))
    alone.ask(0.0, "a", 100, prompt=1000)
    watched = Machine(Engine(base_s=0.01, token_s=1e-4))
    watched.ask(0.0, "a", 100, prompt=1000)
    for at_s in range(1, 11):
        watched.at(float(at_s), watched.replica.load)
    assert watched.play().ends == alone.play().ends


def test_tokens_of_an_iteration_speed_a_request_up():
    machine = Machine(Engine(base_s=0.02, tokens_per_iteration=2.0))
    machine.ask(0.0, "a", 50)
    assert machine.play().ends == {"a": pytest.approx(0.5)}


def test_prefill_takes_the_replica_and_is_first_come_first_served():
    machine = Machine(Engine(base_s=0.1, prefill_token_s=0.01))
    a = machine.ask(0.0, "a", 10, prompt=100)  # prefill to 1.0, decode to 1.5, stand to 3.5, decode to 4.0
    b = machine.ask(1.5, "b", 1, prompt=100)  # prefill to 2.5
    c = machine.ask(1.5, "c", 1, prompt=100)  # waits to 2.5, prefill to 3.5
    ends = machine.play().ends
    assert ends == {"b": pytest.approx(3.6), "c": pytest.approx(3.6), "a": pytest.approx(4.0)}
    assert (a.prefill_s, a.decode_s) == (pytest.approx(1.0), pytest.approx(3.0))
    assert (b.waited_s, c.waited_s, c.prefill_s) == (0.0, pytest.approx(1.0), pytest.approx(1.0))


def test_separate_prefill_leaves_decoding_alone():
    machine = Machine(Engine(base_s=0.1, prefill_token_s=0.01, separate_prefill=True, prefill_lines=2))
    for name in "abc":
        machine.ask(0.0, name, 10, prompt=100)
    assert machine.play().ends == {"a": pytest.approx(2.0), "b": pytest.approx(2.0), "c": pytest.approx(3.0)}


def test_a_later_turn_prefills_only_what_is_new():
    machine = Machine(Engine(base_s=0.1, prefill_token_s=0.01))
    request = machine.ask(0.0, "a", 10, prompt=100)
    machine.play()
    request.context_tokens = 100 + 10 + 50  # answer and observation
    machine.at(0.0, machine.submit, (request, 10))
    machine.play()
    assert request.prefill_s == pytest.approx(0.5)
    machine.replica.stand()
    machine.replica.take_up(0, 1, recompute=True)
    request.context_tokens = 220
    machine.at(0.0, machine.submit, (request, 10))
    machine.play()
    assert request.prefill_s == pytest.approx(2.2)


def test_a_group_shares_its_prompt():
    machine = Machine(Engine(base_s=0.1, prefill_token_s=0.01))
    requests = [machine.ask(0.0, name, 10, prompt=100, group="t0") for name in "ab"]
    machine.play()
    assert [request.prefill_s for request in requests] == [pytest.approx(1.0), pytest.approx(0.01)]


def test_a_place_is_waited_for_by_priority():
    machine = Machine(Engine(base_s=0.1, max_running=1))
    for name, priority in (("first", 5), ("young", 3), ("old", 1)):
        machine.ask(0.0, name, 10, priority=priority)
    assert machine.play().ends == {
        "first": pytest.approx(1.0),
        "old": pytest.approx(2.0),
        "young": pytest.approx(3.0),
    }


def test_spans_are_cut_where_the_version_came():
    machine = Machine(Engine(base_s=0.1))
    request = machine.ask(0.0, "a", 10)
    machine.play(0.35)
    machine.replica.stand()
    machine.play(0.45)
    machine.replica.take_up(0, 1, recompute=False)
    assert machine.play().ends == {"a": pytest.approx(1.1)}  # 0.1 s of standing still
    assert request.answer == [(0, 0, 3), (0, 1, 7)]


def test_recomputing_takes_the_time_of_prefilling_what_runs():
    machine = Machine(Engine(base_s=0.1, prefill_token_s=0.01))
    machine.ask(0.0, "a", 20, prompt=100)
    machine.play(2.0)
    machine.replica.stand()
    machine.replica.take_up(0, 1, recompute=True)  # 110 tokens
    assert machine.play().ends == {"a": pytest.approx(1.0 + 2.0 + 1.1)}


def test_who_is_taken_away_keeps_its_tokens():
    machine = Machine(Engine(base_s=0.1))
    request = machine.ask(0.0, "a", 10)
    machine.play(0.55)
    machine.replica.take(request)
    assert (request.answer, request.num_left, machine.replica.running) == ([(0, 0, 5)], 5, 0)
    assert machine.play().ends == {}


def test_full_memory_preempts_the_youngest():
    machine = Machine(Engine(base_s=0.1, kv_tokens=300, prefill_token_s=1e-6))
    machine.ask(0.0, "old", 150, prompt=50)
    young = machine.ask(0.0, "young", 150, prompt=50)
    machine.play()
    assert machine.replica.num_preemptions == 1
    assert machine.ends["old"] == pytest.approx(15.0, abs=0.01)
    assert machine.ends["young"] == pytest.approx(10.0 + 5.0 + 5.0, abs=0.01)
    assert sum(span.num_tokens for span in young.answer) == 150


def test_a_full_cache_forgets_the_conversation_that_is_longest_elsewhere():
    machine = Machine(Engine(base_s=0.01, kv_tokens=400, prefill_token_s=0.01))
    first = machine.ask(0.0, "first", 10, prompt=150)
    machine.ask(10.0, "second", 10, prompt=150)
    machine.ask(20.0, "third", 10, prompt=150)
    machine.play(30.0)
    first.context_tokens = 170
    machine.at(0.0, machine.submit, (first, 1))
    machine.play()
    assert first.prefill_s == pytest.approx(1.7)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kv_tokens=st.sampled_from([0, 900, 3000]),
    slots=st.sampled_from([1, 3, 100]),
    separate=st.booleans(),
    prefill=st.sampled_from([0.0, 0.001]),
)
@example(seed=2097152, kv_tokens=0, slots=100, separate=False, prefill=0.001)  # pauses that overlap
def test_tokens_are_conserved_and_nobody_is_faster_than_alone(seed, kv_tokens, slots, separate, prefill):
    rng = random.Random(seed)
    engine = Engine(
        base_s=0.01, row_s=0.001, token_s=1e-6, prefill_token_s=prefill, kv_tokens=kv_tokens,
        max_running=slots, separate_prefill=separate, prefill_lines=rng.choice([0, 1, 2]),
    )  # fmt: skip
    machine = Machine(engine)
    asked = []
    for number in range(rng.randint(1, 25)):
        tokens, prompt, at_s = rng.randint(1, 300), rng.randint(1, 300), rng.random() * 10.0
        request = machine.ask(at_s, f"r{number}", tokens, prompt=prompt)
        asked.append((request, tokens, prompt, at_s))
    for at_s in sorted(rng.random() * 20.0 for _ in range(3)):
        machine.play(at_s)
        machine.replica.stand()
        machine.play(at_s + 0.05)
        version = machine.replica._versions[-1][2] + 1
        machine.replica.take_up(0, version, recompute=rng.random() < 0.5)
    taken = rng.choice(asked)[0]
    machine.play(rng.random() * 30.0 + machine.now_s)
    machine.replica.take(taken)
    machine.play()
    assert machine.replica.running == machine.replica.waiting == 0
    for request, tokens, prompt, at_s in asked:
        got = request.num_answered
        assert got + request.num_left == tokens
        if request.rollout not in machine.ends:
            assert request is taken
            continue
        assert got == tokens
        numbers = [span.number for span in request.answer]
        assert numbers == sorted(numbers)
        alone_s = prefill * prompt + tokens * (0.011 + 1e-6 * (prompt + tokens / 2))
        assert machine.ends[request.rollout] - at_s >= alone_s - 1e-6
        parts = request.waited_s + request.prefill_s + request.decode_s
        assert parts == pytest.approx(machine.ends[request.rollout] - at_s, abs=1e-6)
