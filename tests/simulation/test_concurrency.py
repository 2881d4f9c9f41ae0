"""Concurrency and the sandbox start rate, shown by their effect in simulated runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import GrantSandbox, Park, Resume
from headway.core.events import ReplicaChanged, RolloutEnded
from headway.core.notes import ConcurrencyChanged
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.band import ConcurrencySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from tests.simulation.ledger import all_commands, all_notes, assert_conserved

FIXED = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=128, bound=4),
    stop=StopSettings(steps=8),
    eval=EvalSettings(num_tasks=0),
)
ADAPTIVE = replace(FIXED, concurrency=ConcurrencySettings(mode="adaptive", initial=32))
# two answers of 200 tokens: the memory of about 150 rollouts, and slots for all that depth lets in
SIM = SimSettings(
    max_running=1024,
    tokens_mean=200,
    max_answer_tokens=2000,
    token_s=0.05,
    prefill_token_s=0.012,
    kv_tokens=48_000,
    train_s=1.0,
    uses_sandbox=False,
    tool_s=0.5,
)
STEADY = (60.0, 200.0)  # seconds: filled up, and not yet running out


def play(
    settings: SchedulerSettings, sim: SimSettings = SIM, seed: int = 1
) -> tuple[SimRun, SimulatedDriver]:
    driver = SimulatedDriver(SimRun(Scheduler(settings)), sim, seed)
    driver.play(max_events=2_000_000)
    assert_conserved(driver.run.entries)
    return driver.run, driver


def summary_of(run: SimRun) -> dict:
    metrics = RunMetrics()
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return metrics.summary()


def steady(run: SimRun, kind: type) -> list:
    return [e.event for e in run.entries if isinstance(e.event, kind) and STEADY[0] < e.t < STEADY[1]]


def test_the_kv_cache_stays_in_its_band_without_preemption_storms() -> None:
    fixed, storm = play(FIXED)
    adaptive, calm = play(ADAPTIVE)
    used = [event.kv_used_fraction for event in steady(adaptive, ReplicaChanged)]
    assert 0.65 < sum(used) / len(used) < 0.85
    assert storm.memory.num_preemptions > 100
    assert calm.memory.num_preemptions <= 2
    # a cache that is never full does less at once, and what it does is done in half the time and fresher
    assert len(steady(adaptive, RolloutEnded)) > 0.75 * len(steady(fixed, RolloutEnded))
    before, after = summary_of(fixed), summary_of(adaptive)
    assert after["rl.latency.end_to_end_s"]["mean"] < 0.6 * before["rl.latency.end_to_end_s"]["mean"]
    assert after["rl.staleness.token"]["mean"] < 0.8 * before["rl.staleness.token"]["mean"]


def test_the_limit_settles() -> None:
    run, _ = play(ADAPTIVE)
    late = [entry for entry in run.entries if entry.t > STEADY[0]]
    limits = [note.limit for note in all_notes(late, ConcurrencyChanged)]
    assert len(limits) < 20
    assert not limits or max(limits) < 1.3 * min(limits)
    level = summary_of(run)["rl.concurrency.limit"]
    assert 32 < level["mean"] <= level["max"] < 250


def test_a_hard_trim_parks_rollouts_and_they_go_on() -> None:
    crowded = replace(ADAPTIVE, concurrency=ConcurrencySettings(mode="adaptive", initial=400))
    run, driver = play(crowded)
    parks = all_commands(run.entries, Park)
    assert parks
    assert driver.finish is not None
    assert driver.finish.outcome == "steps"
    used = [event.kv_used_fraction for event in steady(run, ReplicaChanged)]
    assert 0.5 < sum(used) / len(used) < 0.85
    again = {command.rollout for command in all_commands(run.entries, Resume)}
    assert again <= {command.rollout for command in parks}
    assert again


def test_fixed_leaves_the_number_in_flight_alone() -> None:
    run, _ = play(replace(FIXED, stop=StopSettings(steps=1)))
    assert not all_notes(run.entries, ConcurrencyChanged)
    assert not all_commands(run.entries, Park)


def test_rollouts_that_would_only_wait_for_a_sandbox_are_not_let_in() -> None:
    sim = SimSettings(max_running=256, kv_tokens=10_000_000, tool_s=4.0, num_turns=3)
    settings = replace(ADAPTIVE, max_sandboxes=20, verify_sandboxes=4, stop=StopSettings(steps=3))
    lines = []
    for each in (replace(settings, concurrency=ConcurrencySettings()), settings):
        run, _ = play(each, sim)
        scheduler, waiting = Scheduler(each), []
        for entry in run.entries:
            scheduler.handle(entry.event, entry.t)
            if 30.0 < entry.t < 90.0:
                waiting.append(len(scheduler.index.wanted["rollout"]))
        lines.append(sum(waiting) / len(waiting))
    assert lines[1] < 0.1 * lines[0]
    assert any(note.reason == "sandboxes" for note in all_notes(run.entries, ConcurrencyChanged))


@pytest.mark.parametrize("rate", [0.5, 2.0, 10.0])
def test_sandboxes_start_at_no_more_than_the_set_rate(rate: float) -> None:
    settings = replace(FIXED, max_sandbox_starts_per_s=rate, max_sandboxes=64, stop=StopSettings(steps=1))
    run, _ = play(settings, SimSettings(max_running=256))
    grants = [e.t for e in run.entries for command in e.commands if isinstance(command, GrantSandbox)]
    assert len(grants) > 50
    per_second = max(1.0, rate)
    for index, start in enumerate(grants):
        inside = [t for t in grants[index:] if t < start + 20.0]
        assert len(inside) <= 20.0 * rate + per_second + 1e-9
    busy = grants[len(grants) // 2] - grants[0]
    assert len(grants) // 2 >= 0.8 * rate * busy  # as fast as it may


def test_a_snapshot_in_the_midst_goes_on_exactly() -> None:
    settings = replace(ADAPTIVE, stop=StopSettings(steps=2))
    run, _ = play(settings)
    scheduler = Scheduler(settings)
    for index, entry in enumerate(run.entries):
        if index == len(run.entries) // 2:
            scheduler = Scheduler.restore(settings, scheduler.snapshot())
        assert scheduler.handle(entry.event, entry.t) == (entry.commands, entry.notes)
