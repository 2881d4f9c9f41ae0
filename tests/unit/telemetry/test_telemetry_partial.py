"""What the summary says of parked and resumed rollouts, and of a trainer that went back."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.ledger import all_notes

from headway.core.events import RolloutParked, RolloutResumed
from headway.core.notes import RolledBackTo
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, simulate
from headway.queue.partial import PartialSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.queue.staleness import StalenessSettings
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.partial import Partial
from headway.telemetry.records import Entry
from headway.telemetry.report import report_text

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=8, bound=3),
    staleness=StalenessSettings(token="mask"),
    partial=PartialSettings(park="update", after_steps=1),
    recovery=RecoverySettings(generator_restarts=50, trainer_restarts=50),
    stop=StopSettings(steps=12),
    eval=EvalSettings(num_tasks=0),
)
SIM = SimSettings(tool_s=2.0, tool_sigma=2.0, train_s=1.0)


def measured(run: SimRun) -> RunMetrics:
    metrics = RunMetrics()
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return metrics


def assert_parks_add_up(summary) -> None:
    ends = ("num_resumed", "num_crossed", "num_given_up", "num_still_parked")
    begins = ("num_parked", "num_engine_lost")
    assert sum(summary[f"rl.partial.{name}"] for name in ends) == sum(
        summary[f"rl.partial.{name}"] for name in begins
    )


def test_each_park_has_one_end_also_where_engines_die() -> None:
    sim = replace(SIM, generator_dies_every_s=60.0)
    found = [measured(simulate(SETTINGS, sim, seed=seed)).summary() for seed in range(4)]
    assert any(summary["rl.partial.num_engine_lost"] for summary in found)
    for summary in found:
        assert_parks_add_up(summary)


def test_how_parks_that_were_never_resumed_ended() -> None:
    partial = Partial()
    for name in ("ends", "settles", "again", "stopped", "waits", "carried"):
        partial.parked(1.0, RolloutParked(name, 0, (), ""))
    partial.ended("ends")
    partial.gone("ends", "trained")  # what ended is not parked any more
    partial.gone("settles", "stale")
    partial.started("again", "")
    partial.gone("stopped", "stopped")
    partial.gone("carried", "carried")
    partial.started("carried", "what its last life left")
    summary = partial.summary()
    names = ("num_parked", "num_resumed", "num_crossed", "num_given_up", "num_still_parked")
    assert [summary[f"rl.partial.{name}"] for name in names] == [6, 1, 1, 2, 2]
    assert_parks_add_up(summary)


def test_the_table_by_the_sandbox_s_age_appears_only_where_a_rollout_acted_on_one() -> None:
    metrics = measured(simulate(SETTINGS, SIM, seed=1))
    summary = metrics.summary()
    assert "age of the sandbox's state" in report_text(summary, metrics.series())
    summary["rl.rollout.tool_calls"] = dict.fromkeys(summary["rl.rollout.tool_calls"], 0.0)
    summary["rl.partial.outcomes"] = {"fresh": {"0": {"num_rollouts": 3, "mean_reward": 1.0}}, "resumed": {}}
    text = report_text(summary, metrics.series())
    assert "age of the sandbox's state" not in text
    assert f"{summary['rl.partial.num_resumed']} times resumed" in text


def test_parked_and_resumed_rollouts_are_counted_and_their_outcomes_told_apart() -> None:
    run = simulate(SETTINGS, SIM, seed=1)
    metrics = measured(run)
    summary = metrics.summary()
    parked = [entry.event for entry in run.entries if isinstance(entry.event, RolloutParked)]
    resumed = [entry.event for entry in run.entries if isinstance(entry.event, RolloutResumed)]
    assert summary["rl.partial.num_parked"] == len(parked) > 0
    assert summary["rl.partial.num_resumed"] == len(resumed) > 0
    assert summary["rl.partial.recomputed_tokens"] == sum(event.num_recomputed_tokens for event in resumed)
    assert_parks_add_up(summary)
    outcomes = summary["rl.partial.outcomes"]
    counted = sum(cell["num_rollouts"] for table in outcomes.values() for cell in table.values())
    assert counted == summary["num_rollouts"]
    assert any(bucket != "0" for bucket in outcomes["resumed"])
    assert summary["conservation.ok"]
    assert "Parked and resumed rollouts" in report_text(summary, metrics.series())


def test_a_rollback_takes_the_lost_steps_out_of_the_series() -> None:
    run = simulate(SETTINGS, replace(SIM, p_trainer_dies=0.2), seed=3)
    metrics = measured(run)
    summary, lost = metrics.summary(), all_notes(run.entries, RolledBackTo)
    assert summary["num_rollbacks"] == len(lost) > 0
    assert sum(note.from_step - note.step for note in lost) > 0
    assert [row["step"] for row in metrics.series()] == list(range(1, 13))
    assert summary["rl.trainer.lost_compute_s"] > 0
    assert summary["conservation.ok"]
    assert "rolled back" in report_text(summary, metrics.series())
