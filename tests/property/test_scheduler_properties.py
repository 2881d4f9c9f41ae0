"""Invariants of the scheduler over thousands of interleavings, faults and kills."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.commands import Finish, Train
from headway.core.events import Event
from headway.core.notes import BatchReleased, EvalEnded
from headway.matching.roles import SimSettings
from headway.matching.simulate import simulate
from headway.queue.context import Context
from headway.queue.index import Index
from headway.queue.partial import PartialSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.queue.staleness import StalenessSettings
from tests.simulation.ledger import all_notes, assert_conserved, assert_within_bound
from tests.simulation.scenarios import play_lives

LOOSE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
probability = st.sampled_from([0.0, 0.0, 0.02, 0.2])

scheduler_settings = st.builds(
    lambda group, batches, bound, depth, refills, every, policy, evals, sandboxes, more: SchedulerSettings(
        queue=QueueSettings(
            group_size=group,
            batch_size=group * batches,
            bound=bound,
            depth=min(depth, bound),
            max_refill_batches=refills,
            on_failed_rollout=policy,
            max_empty_batches=3,
            publish_every=1
            + more["publish_lag"] * bool(min(depth, bound) != 0 and bound and more["level"] != 0),
            max_updating_replicas=more["updating"],
            stream=more["stream"],
            batch_tokens=more["batch_tokens"],
        ),
        staleness=StalenessSettings(
            token=more["token"],
            down_weight_from=more["level"],
            trajectory_bound=more["level"],
            trajectory=more["trajectory"] if more["level"] else "drop",
            environment_bound=more["level"],
            environment=more["environment"],
        ),
        partial=PartialSettings(
            park=more["park"], after_steps=more["after"], max_late_batches=2, train=more["train"]
        ),
        recovery=RecoverySettings(generator_restarts=50, trainer_restarts=50),
        num_replicas=more["replicas"],
        stop=StopSettings(steps=5),
        checkpoint=CheckpointSettings(every_steps=every),
        eval=EvalSettings(num_tasks=evals, every_steps=2),
        rollout_timeout_s=30.0,
        max_sandboxes=sandboxes,
        verify_sandboxes=1,
    ),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(-1, 4),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from(["shrink", "void"]),
    st.sampled_from([0, 3]),
    st.integers(2, 8),
    st.fixed_dictionaries(
        {
            "publish_lag": st.sampled_from([0, 0, 1]),
            "updating": st.sampled_from([0, 1]),
            "stream": st.booleans(),
            "batch_tokens": st.sampled_from([0, 0, 300]),
            "token": st.sampled_from(["drop", "mask"]),
            "level": st.sampled_from([-1, -1, 0, 1, 2]),
            "trajectory": st.sampled_from(["drop", "restart"]),
            "environment": st.sampled_from(["mask", "drop", "restart"]),
            "park": st.sampled_from(["never", "batch", "update"]),
            "after": st.integers(0, 2),
            "train": st.sampled_from(["all", "newest"]),
            "replicas": st.integers(1, 3),
        }
    ),
)
sim_settings = st.builds(
    SimSettings,
    max_running=st.integers(1, 16),
    tokens_sigma=st.sampled_from([0.0, 0.6, 1.2]),
    train_s=st.sampled_from([0.1, 2.0, 20.0]),
    apply_s=st.sampled_from([0.01, 3.0]),
    solve_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    p_environment_fails=probability,
    p_infrastructure_fails=probability,
    p_hangs=probability,
    p_ignores_cancel=st.sampled_from([0.0, 0.5]),
    p_score_fails=probability,
    p_sandbox_lost=probability,
    p_repeated=st.sampled_from([0.0, 0.1]),
    tool_sigma=st.sampled_from([0.0, 2.0]),
    tool_s=st.sampled_from([0.1, 3.0]),
    generator_dies_every_s=st.sampled_from([0.0, 0.0, 100.0]),
    p_trainer_dies=st.sampled_from([0.0, 0.0, 0.2]),
    keeps_partials=st.booleans(),
)


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_every_run_ends_conserves_its_rollouts_and_respects_the_bound(
    queue: SchedulerSettings, sim: SimSettings, seed: int
) -> None:
    run = simulate(queue, sim, seed)
    finish = run.entries[-1].commands[-1]
    assert isinstance(finish, Finish)
    assert finish.outcome in ("steps", "no_signal", "failed")
    assert_conserved(run.entries)
    assert_within_bound(run.entries, queue.queue.bound)


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_same_seed_same_simulation_to_the_byte(queue: SchedulerSettings, sim: SimSettings, seed: int) -> None:
    first, second = simulate(queue, sim, seed), simulate(queue, sim, seed)
    assert [e.to_bytes() for e in first.entries] == [e.to_bytes() for e in second.entries]


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32), st.integers(1, 400))
def test_a_restored_snapshot_goes_on_exactly_where_it_was_taken(
    queue: SchedulerSettings, sim: SimSettings, seed: int, at: int
) -> None:
    run = simulate(queue, sim, seed)
    scheduler = Scheduler(queue)
    for index, entry in enumerate(run.entries):
        if index == at:
            scheduler = Scheduler.restore(queue, scheduler.snapshot())
        assert scheduler.handle(entry.event, entry.t) == (entry.commands, entry.notes)


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32), st.lists(st.integers(1, 600), max_size=3))
def test_killed_anywhere_a_run_resumes_and_trains_nothing_twice(
    queue: SchedulerSettings, sim: SimSettings, seed: int, kills: list[int]
) -> None:
    play_lives(queue, sim, seed, kills)


@LOOSE
@given(scheduler_settings, st.integers(0, 2**32))
def test_bound_zero_trains_on_policy_only_and_ends(queue: SchedulerSettings, seed: int) -> None:
    sync = replace(queue, queue=replace(queue.queue, bound=0, depth=0, publish_every=1))
    run = simulate(sync, SimSettings(tokens_sigma=1.2), seed)
    for batch in all_notes(run.entries, BatchReleased):
        assert {age for age, _ in batch.token_staleness} <= {0}


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_refill_never_exceeds_its_budget(queue: SchedulerSettings, sim: SimSettings, seed: int) -> None:
    run = simulate(queue, sim, seed)
    for entry in run.entries:
        for command in entry.commands:
            if isinstance(command, Train):
                groups = {row.group for row in command.rows}
                assert 1 <= len(groups) <= queue.queue.batch_groups


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_an_evaluation_counts_every_task_once(queue: SchedulerSettings, sim: SimSettings, seed: int) -> None:
    run = simulate(queue, sim, seed)
    for note in all_notes(run.entries, EvalEnded):
        assert note.num_rollouts + note.num_failed == queue.eval.num_tasks * queue.eval.rollouts_per_task
        assert 0.0 <= note.pass_at_1 <= note.pass_at_n <= 1.0


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_the_index_is_what_the_state_says(queue: SchedulerSettings, sim: SimSettings, seed: int) -> None:
    run = simulate(queue, sim, seed)
    scheduler = Scheduler(queue)
    for entry in run.entries:
        scheduler.handle(entry.event, entry.t)
        assert looked_up(scheduler.index) == looked_up(Index(scheduler.state))


class Thorough(Scheduler):
    """Runs all rules after every event."""

    def _is_calm(self, ctx: Context, event: Event) -> bool:
        return False


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_rules_that_are_left_out_would_have_done_nothing(
    queue: SchedulerSettings, sim: SimSettings, seed: int
) -> None:
    run = simulate(queue, sim, seed)
    thorough = Thorough(queue)
    for entry in run.entries:
        assert thorough.handle(entry.event, entry.t) == (entry.commands, entry.notes)
    assert thorough.snapshot() == run.scheduler.snapshot()


def looked_up(index: Index) -> dict[str, object]:
    """Return what an index holds, without the order that things came in and without dead heap entries."""
    return {
        "train": {shelf: sorted(groups) for shelf, groups in index.train.items()},
        "evals": {shelf: sorted(groups) for shelf, groups in index.evals.items()},
        "rollouts": {name: (group.id, rollout.id) for name, (group, rollout) in index.rollouts.items()},
        "complete": sorted(index.complete),
        "parked": sorted(index.parked),
        "num_running": index.num_running,
        "num_late": index.num_late,
        "num_queued_tokens": index.num_queued_tokens,
        "busy": index.busy,
        "load": index.load,
        "wanted": {purpose: list(line) for purpose, line in index.wanted.items()},
        "num_live_sandboxes": index.num_live_sandboxes,
        "earliest": index.earliest(),
    }
