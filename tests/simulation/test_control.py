"""The controller in simulated runs: it comes to rest, keeps to its bounds, and helps where it can."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headway.config.control import ControlSettings
from headway.core.events import SettingChanged, StepEnded
from headway.core.notes import BatchReleased, RolloutSettled
from headway.matching.control import Controller
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from tests.simulation.ledger import assert_conserved, assert_within_bound
from tests.simulation.scenarios import play as play_scenario
from tests.simulation.scenarios import replayed

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=16, bound=3, depth=2),
    eval=EvalSettings(num_tasks=0),
    checkpoint=CheckpointSettings(every_steps=0),
    rollout_timeout_s=1e5,
    max_sandboxes=10_000,
    verify_sandboxes=100,
)
BASE = SimSettings(max_running=64, solve_rate=0.5, tokens_mean=40)
STATIONARY = {
    "tails": replace(BASE, tool_s=10.0, tool_sigma=1.5, num_turns=3, train_s=2.0),
    "trainer": replace(BASE, tool_s=0.2, train_s=20.0),
    "slots": replace(BASE, max_running=8, train_s=2.0),
    "memory": replace(BASE, kv_tokens=900, prefill_token_s=0.02, sample_s=0.5, train_s=2.0),
    "matched": replace(BASE, tool_s=5.0, tool_sigma=1.0, train_s=6.0),
}
ON = ControlSettings(mode="on")
EXTRAS = {"oversampling.rollouts_extra", "oversampling.groups_extra"}


def play(
    sim: SimSettings, steps: int, control: ControlSettings | None, settings=SETTINGS, seed: int = 0
) -> SimRun:
    settings = replace(settings, stop=StopSettings(steps=steps))
    run = SimRun(Scheduler(settings))
    run.controller = None if control is None else Controller(control, settings)
    SimulatedDriver(run, sim, seed).play(max_events=10_000_000)
    return run


def changes(run: SimRun) -> list[tuple[int, SettingChanged]]:
    """Return what control changed, each with the steps taken before."""
    step, found = 0, []
    for entry in run.entries:
        if isinstance(entry.event, StepEnded):
            step = entry.event.step
        if isinstance(entry.event, SettingChanged):
            assert entry.event.by == "control"
            assert entry.event.reason
            found.append((step, entry.event))
    return found


def rate(run: SimRun) -> float:
    trained = sum(
        note.num_rollouts for e in run.entries for note in e.notes if isinstance(note, BatchReleased)
    )
    return trained / run.entries[-1].t


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("tails", "matched") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in STATIONARY
    ],
)
def test_a_stationary_run_comes_to_rest(kind):
    run = play(STATIONARY[kind], 240, ON)
    found = changes(run)
    halves = [sum(step < 120 for step, _ in found), sum(step >= 120 for step, _ in found)]
    assert halves[0] <= 30
    assert halves[1] <= 10, [(step, e.key, e.value, e.reason) for step, e in found]
    levers = run.controller.levers
    for _, event in found:
        low, high = {"queue.depth": (1, 3), "oversampling.groups_extra": (0, 8)}.get(event.key, (0, 4096))
        assert low <= event.value <= high
    assert levers.value("depth") <= 3
    assert_conserved(run.entries)
    assert_within_bound(run.entries, SETTINGS.queue.bound)
    replayed(replace(SETTINGS, stop=StopSettings(steps=240)), run)


def test_tools_with_long_tails_are_made_up_for():
    fixed, controlled = (rate(play(STATIONARY["tails"], 80, mode)) for mode in (None, ON))
    assert controlled > 1.2 * fixed


def test_a_trainer_that_never_waits_gets_fresher_samples_and_no_waste():
    extra = replace(SETTINGS, oversampling=OversamplingSettings(groups_extra=2))
    run = play(STATIONARY["trainer"], 60, ON, settings=extra)
    levers = run.controller.levers
    assert (levers.value("groups_extra"), levers.value("depth")) == (0, 1)
    assert rate(run) > 0.97 * rate(play(STATIONARY["trainer"], 60, None, settings=extra))


@pytest.mark.parametrize("kind", ["tails", "matched"])
def test_with_bound_0_it_turns_oversampling_and_nothing_that_a_batch_leaves_behind(kind):
    """The two halves take turns: what is not in the batch is too old for the next one."""
    queue = replace(SETTINGS.queue, bound=0, depth=-1)
    settings = replace(SETTINGS, queue=queue)
    run = play(STATIONARY[kind], 60, ON, settings=settings)
    assert {event.key for _, event in changes(run)} <= EXTRAS
    assert rate(run) > 1.2 * rate(play(STATIONARY[kind], 60, None, settings=settings))
    assert {note.fate for e in run.entries for note in e.notes if isinstance(note, RolloutSettled)} <= {
        "trained", "filtered", "cancelled", "stopped", "unused",
    }  # fmt: skip
    assert_conserved(run.entries)
    assert_within_bound(run.entries, 0)


def test_with_bound_0_and_no_oversampling_allowed_it_looks_on():
    settings = replace(SETTINGS, queue=replace(SETTINGS.queue, bound=0, depth=-1))
    control = ControlSettings(mode="on", levers=("depth", "running", "batch_wait"))
    assert changes(play(STATIONARY["tails"], 40, control, settings=settings)) == []


def test_the_same_seed_gives_the_same_decisions():
    runs = [play(STATIONARY["tails"], 30, ON) for _ in range(2)]
    first, second = ([entry.to_bytes() for entry in run.entries] for run in runs)
    assert first == second


def test_two_lives_decide_as_one_journal_says():
    run = play(STATIONARY["tails"], 40, ON)
    again = Controller(ON, replace(SETTINGS, stop=StopSettings(steps=40)))
    decided = [event for entry in run.entries for event in again.feed(entry)]
    assert decided == [event for _, event in changes(run)]


def test_faults_and_kills_leave_every_invariant_with_a_controller_at_work():
    """`play_scenario` checks them: every rollout ends once, nothing is beyond the bound, replays agree."""
    keys: Counter[str] = Counter()
    for seed in range(20_000, 20_060):
        try:
            run, _ = play_scenario(seed, control=True)
        except BaseException as error:
            error.add_note(f"the scenario of seed {seed}")
            raise
        events = [entry.event for entry in run.entries if isinstance(entry.event, SettingChanged)]
        keys.update(event.key for event in events if event.by == "control")
    assert set(keys) >= {"queue.depth", "oversampling.groups_extra", "oversampling.rollouts_extra"}, keys


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_seeds_keep_every_invariant_with_a_controller():
    for seed in range(21_000, 23_000):
        try:
            play_scenario(seed, control=True)
        except BaseException as error:
            error.add_note(f"the scenario of seed {seed}")
            raise
