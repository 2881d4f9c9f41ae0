"""The simulator against queueing theory: what is known in closed form comes out within the error of a sample.

Exact values are the closed-form rows of the project's table of queueing cases. Each estimate is compared with
four of its own standard errors, so that a right simulator fails by chance once in tens of thousands of seeds;
the seeds are fixed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import pytest

from headway.core.events import StepEnded, TurnEnded
from headway.matching.contracts import RolloutPlan, TurnPlan
from headway.matching.engine_replica import Replica, Request
from headway.matching.simulate_models import ModelledDriver
from headway.matching.spec import WorkloadSettings
from headway.matching.workload import DrawnWorkload
from headway.queue.settings import (
    CheckpointSettings,
    DeadlineSettings,
    EvalSettings,
    OversamplingSettings,
    QueueSettings,
    SchedulerSettings,
)

SIGMAS = 4.0
QUIET = SchedulerSettings(
    eval=EvalSettings(num_tasks=0),
    checkpoint=CheckpointSettings(every_steps=50),
    deadlines=DeadlineSettings(train_s=1e9, publish_s=1e9, apply_s=1e9, cancel_s=1e9),
    rollout_timeout_s=1e9,
    score_timeout_s=1e9,
    kv="keep",
)


class Engine:
    """Each request gets a token a millisecond; or all of them share that, with `shares`."""

    kv_tokens = offload_tokens = prefill_lines = 0
    separate_prefill, tokens_per_iteration = True, 1.0

    def __init__(self, max_running: int = 1_000_000, shares: bool = False) -> None:
        self.max_running, self.shares = max_running, shares

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        return 0.001 * num_running if self.shares else 0.001

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        return 0.0


class Trainer:
    """Takes what `draw` says."""

    load_s = publish_s = apply_s = save_s = 0.0

    def __init__(self, draw: Callable[[], float] = lambda: 0.0) -> None:
        self._draw = draw

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        return self._draw()


class Rollouts:
    """Rollouts of turns whose answers and tools take what two functions draw, seconds."""

    def __init__(
        self,
        answer_s: Callable[[random.Random], float],
        tool_s: Callable[[random.Random], float] | None = None,
        turns: int = 1,
    ) -> None:
        self._answer_s, self._tool_s, self._turns = answer_s, tool_s, turns

    def plan(self, rng: random.Random, *_: Any) -> RolloutPlan:
        turns = [
            TurnPlan(
                max(1, round(1000.0 * self._answer_s(rng))), self._tool_s(rng) if self._tool_s else None, 0
            )
            for _ in range(self._turns)
        ]
        return RolloutPlan(1, tuple(turns), False, rng.random() < 0.5, 0.0)

    def reward(self, rng: random.Random, plan: RolloutPlan) -> float:
        return float(plan.solved)


class Times:
    """Remembers when events of one kind happened, and what they said."""

    def __init__(self, kind: type) -> None:
        self.kind, self.found = kind, list[tuple[float, Any]]()

    def write_event(self, seq: int, t: float, event: Any, commands: Any, notes: Any) -> None:
        if isinstance(event, self.kind):
            self.found.append((t, event))


def lognormal(mean: float, sigma: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.lognormvariate(log(mean) - sigma * sigma / 2, sigma)


def exponential(mean: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.expovariate(1.0 / mean)


def estimate(values: Iterable[float], batch: int = 1) -> tuple[float, float]:
    """Return the mean and its standard error, from means of batches of values that follow one another."""
    values = list(values)
    means = [sum(values[i : i + batch]) / batch for i in range(0, len(values) - batch + 1, batch)]
    mean = sum(means) / len(means)
    return mean, sqrt(sum((x - mean) ** 2 for x in means) / (len(means) - 1) / len(means))


def agrees(values: Iterable[float], exact: float, batch: int = 1, most_error: float = 0.1) -> None:
    mean, error = estimate(values, batch)
    assert abs(mean - exact) <= SIGMAS * error, f"{mean:.5g} +- {error:.2g}, exactly {exact:.5g}"
    assert error < most_error * exact, "too few values to say anything"


# --- order statistics: a group waits for its slowest, oversampling for the fastest


def steps_of(wanted: int, started: int, draw: Callable[[random.Random], float], num_steps: int) -> Any:
    """Simulate synchronous steps of one group; return the seconds of each and the summary."""
    settings = replace(
        QUIET,
        queue=QueueSettings(group_size=wanted, batch_size=wanted, bound=0, drop_zero_advantage=False),
        oversampling=OversamplingSettings(rollouts_extra=started - wanted),
    )
    times = Times(StepEnded)
    summary = ModelledDriver(
        settings, engine=Engine(), replicas=1, trainer=Trainer(), workload=Rollouts(draw), journal=times
    ).run(num_steps)
    ends = [t for t, _ in times.found]
    return [after - before for before, after in zip([0.0, *ends], ends, strict=False)], summary


@pytest.mark.parametrize(
    ("sigma", "size", "exact"),
    [(0.5, 8, 1.8876083522197953), (0.5, 64, 2.9257923696709813), (1.0, 16, 4.169687823739331)],
)
def test_a_group_takes_as_long_as_its_slowest(sigma: float, size: int, exact: float) -> None:
    durations, _ = steps_of(size, size, lognormal(1.0, sigma), 200)
    agrees(durations, exact)


@pytest.mark.parametrize(
    ("started", "exact"), [(20, 1.3403267654240276), (32, 0.5976894139815094), (40, 0.4656755939754333)]
)
def test_oversampling_takes_as_long_as_the_last_that_it_needs(started: int, exact: float) -> None:
    durations, _ = steps_of(16, started, lognormal(1.0, 1.0), 300)
    agrees(durations, exact)


def test_the_work_that_oversampling_wastes() -> None:
    parts = []
    for seed in range(8):
        settings = replace(
            QUIET,
            queue=QueueSettings(group_size=16, batch_size=16, bound=0, drop_zero_advantage=False),
            oversampling=OversamplingSettings(rollouts_extra=24),
        )
        parts.append(
            ModelledDriver(
                settings,
                engine=Engine(),
                replicas=1,
                trainer=Trainer(),
                workload=Rollouts(lognormal(1.0, 1.0)),
                seed=seed,
            )
            .run(60)
            .metrics
        )
    assert {part["rl.discard.rollout_fraction"] for part in parts} == {0.6}
    agrees([part["rl.discard.token_fraction"] for part in parts], 0.7199634145162142)
    agrees([part["rl.oversampling.kept_tokens"] / 1000.0 for part in parts], 0.27169339576992624)


def test_a_batch_of_512_out_of_640() -> None:
    durations, _ = steps_of(512, 640, lognormal(1.0, 1.0), 25)
    agrees(durations, 1.4050788560268848)


# --- groups without signal


@pytest.mark.parametrize(
    ("alpha", "beta", "exact"),
    [
        (1.0, 1.0, (0.0588235294, 0.0588235294)),
        (0.5, 0.5, (0.139949934, 0.139949934)),
        (5.0, 1.0, (0.238095238, 4.9e-5)),
    ],
)
def test_groups_of_beta_tasks_that_are_all_solved_or_all_failed(
    alpha: float, beta: float, exact: tuple[float, float]
) -> None:
    settings = replace(
        QUIET, queue=QueueSettings(group_size=16, batch_size=256, bound=1, max_refill_batches=8)
    )
    work = WorkloadSettings(answer_tokens=10.0, solve_alpha=alpha, solve_beta=beta)
    metrics = (
        ModelledDriver(settings, engine=Engine(), replicas=1, trainer=Trainer(), workload=DrawnWorkload(work))
        .run(25)
        .metrics
    )
    num = metrics["rl.group.settled"]
    for name, share in zip(("all_solved", "all_failed"), exact, strict=True):
        error = sqrt(share * (1.0 - share) / num)
        assert abs(metrics[f"rl.group.{name}_fraction"] - share) <= SIGMAS * error + 1e-9
    both = sum(exact)
    assert abs(metrics["rl.group.zero_advantage_fraction"] - both) <= SIGMAS * sqrt(both / num)
    assert num > 350


# --- production against consumption


@pytest.mark.parametrize(
    ("produced", "consumed", "wait", "rate"),
    [(1.95, 2.75, 0.2909090909, 1.95), (0.5, 2.5, 0.8, 0.5), (3.0, 2.75, 0.0, 2.75)],
)
def test_the_slower_side_sets_the_rate(produced: float, consumed: float, wait: float, rate: float) -> None:
    settings = replace(
        QUIET,
        queue=QueueSettings(
            group_size=1, batch_size=64, bound=8, max_running_rollouts=64, drop_zero_advantage=False
        ),
    )
    metrics = (
        ModelledDriver(
            settings,
            engine=Engine(),
            replicas=1,
            trainer=Trainer(lambda: 64 / consumed),
            workload=Rollouts(lognormal(64 / produced, 0.3)),
        )
        .run(90, warmup_steps=10)
        .metrics
    )
    assert metrics["rl.trainer.wait_fraction"] == pytest.approx(wait, abs=0.005)
    assert metrics["rl.consumption.wall_samples_per_s"] == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(
    ("ratio", "places", "idle", "rate"),
    [
        (1.0, 1, 0.5, 0.5),
        (1.0, 4, 0.2, 0.8),
        (1.0, 16, 1 / 17, 16 / 17),
        (0.709, 16, 0.2918435992225383, 0.7081564007774617),
    ],
)
def test_one_producer_and_one_consumer_with_a_bounded_queue_between(
    ratio: float, places: int, idle: float, rate: float
) -> None:
    """M/M/1/K: the producer stops while K rollouts are between it and the end of their step."""
    settings = replace(
        QUIET,
        queue=QueueSettings(
            group_size=1, batch_size=1, bound=places - 1, max_running_rollouts=1, drop_zero_advantage=False
        ),
    )
    waits, rates = [], []
    for seed in range(6):
        rng = random.Random(seed)
        metrics = (
            ModelledDriver(
                settings,
                engine=Engine(),
                replicas=1,
                trainer=Trainer(lambda rng=rng: rng.expovariate(1.0)),
                workload=Rollouts(exponential(1.0 / ratio)),
                seed=seed,
            )
            .run(700, warmup_steps=50)
            .metrics
        )
        waits.append(metrics["rl.trainer.wait_fraction"])
        rates.append(metrics["rl.consumption.wall_samples_per_s"])
    agrees(waits, idle, most_error=0.3)
    agrees(rates, rate)


# --- a closed network: rollouts between a shared engine and their tools


@pytest.mark.parametrize(
    ("customers", "turns", "tool_s", "service_s", "rate", "response_s"),
    [
        (16, 400, 10.0, 1.0, 0.9776981279596364, 6.364969454723708),
        (512, 16, 315.0, 0.36363636363636365, 1.6208701381551214, 0.8797166704297271),
    ],
)
def test_rollouts_between_a_shared_engine_and_their_tools(
    customers: int, turns: int, tool_s: float, service_s: float, rate: float, response_s: float
) -> None:
    """Exact for processor sharing whatever the distributions are."""
    settings = replace(
        QUIET,
        queue=QueueSettings(group_size=1, batch_size=customers, bound=0, drop_zero_advantage=False),
    )
    rates, responses = [], []
    for seed in range(6):
        times = Times(TurnEnded)
        ModelledDriver(
            settings,
            engine=Engine(shares=True),
            replicas=1,
            trainer=Trainer(),
            workload=Rollouts(lognormal(service_s, 0.7), exponential(tool_s), turns),
            seed=seed,
            journal=times,
        ).run(1)
        whole = turns * (tool_s + response_s)  # of a mean rollout
        begin, end = 0.2 * whole, 0.7 * whole  # all have begun to mix, and none has ended
        inside = [event for t, event in times.found if begin < t <= end]
        rates.append(len(inside) / (end - begin))
        responses.append(sum(event.decode_s for event in inside) / len(inside))
    agrees(rates, rate)
    agrees(responses, response_s)


# --- open queues at one replica


class Open:
    """A replica with Poisson arrivals, `look`ed at every so many seconds."""

    def __init__(
        self, engine: Engine, rate: float, draw: Callable[[random.Random], float], seed: int
    ) -> None:
        self.now_s, self.ended = 0.0, list[Request]()
        self.rng, self._rate, self._draw = random.Random(seed), rate, draw
        self._heap, self._count = list[Any](), 0
        self.replica = Replica("g0", engine, self, self.ended.append, (0, 0))

    def at(self, delay_s: float, action: Callable[..., None], argument: Any = None) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._count, action, argument))

    def come(self) -> None:
        request = Request(f"r{self._count}", f"g{self._count}")
        request.context_tokens = 1
        request.ask(max(1, round(1000.0 * self._draw(self.rng))))
        self.replica.submit(request)
        self.at(self.rng.expovariate(self._rate), self.come)

    def play(self, until_s: float, every_s: float = 0.0, look: Callable[[], None] | None = None) -> None:
        def again() -> None:
            assert look is not None
            look()
            self.at(every_s, again)

        if look is not None:
            self.at(every_s, again)
        self.at(0.0, self.come)
        while self._heap[0][0] <= until_s:
            self.now_s, _, action, argument = heapq.heappop(self._heap)
            if argument is None:
                action()
            else:
                action(argument)


def test_waiting_for_one_of_sixteen_places() -> None:
    """M/M/16 at 75 %: the mean wait, and how many wait at all (Erlang's C)."""
    run = Open(Engine(max_running=16), 12.0, exponential(1.0), 3)
    run.play(8_000.0)
    waits = [request.waited_s for request in run.ended[2_000:]]
    agrees(waits, 0.051143464608934985, batch=2_000)
    agrees([float(wait > 0.0) for wait in waits], 0.20457385843573994, batch=2_000)


def test_how_often_more_rollouts_run_than_a_cap() -> None:
    """M/G/inf: the number in flight is Poisson with mean rate times duration."""
    run, seen = Open(Engine(), 2.0, lognormal(300.0, 0.5), 5), list[float]()
    run.play(40_000.0, 400.0, lambda: seen.append(float(run.replica.running)))
    agrees(seen[6:], 600.0, batch=4)
    above = [float(num > 640.0) for num in seen[6:]]
    mean, error = estimate(above, batch=4)
    assert abs(mean - 0.05029083790599968) <= SIGMAS * error


def test_versions_that_come_while_a_rollout_runs() -> None:
    """A rollout of duration D sees D / T of them on average, and none with probability E[(1 - D/T)+]."""
    every_s = 262.6
    run = Open(Engine(), 0.5, lognormal(200.0, 1.0), 7)
    number = 0

    def publish() -> None:
        nonlocal number
        number += 1
        run.replica.stand()
        run.replica.take_up(0, number, recompute=False)

    run.play(60_000.0, every_s, publish)
    crossed = [request.answer[-1].number - request.answer[0].number for request in run.ended]
    agrees(map(float, crossed), 0.7616146230007615, batch=400)
    agrees([float(num == 0) for num in crossed], 0.4678155196617909, batch=400)


def test_rollouts_that_are_met_in_flight_are_the_long_ones() -> None:
    """Length bias: the mean length of what runs at a moment is exp(sigma^2) times that of what starts."""
    run, lengths = Open(Engine(), 20.0, lognormal(1.0, 1.0), 11), list[float]()

    def look() -> None:
        running = run.replica._running
        lengths.extend((request.end_v - request.begun_v) / 1000.0 for request in running)

    run.play(2_000.0, 4.0, look)
    agrees(lengths, exp(1.0), batch=500)
