"""What enters the queue, everything on at once: conservation, the bound, replay, kills, and the index."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.commands import Finish
from headway.core.notes import GroupSettled
from headway.matching.roles import SimSettings
from headway.matching.simulate import simulate
from headway.queue.entry_settings import (
    AcceptanceSettings,
    CurriculumSettings,
    OversamplingSettings,
    Source,
)
from headway.queue.index import Index
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from tests.simulation.ledger import all_notes, assert_conserved, assert_within_bound
from tests.simulation.scenarios import play_lives

LOOSE = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
probability = st.sampled_from([0.0, 0.0, 0.02, 0.2])
MIX = (Source("a", 0.7), Source("b", 0.3, group_size=3, levels=(1, 2)))

scheduler_settings = st.builds(
    lambda group, batches, bound, depth, refills, every, policy, oversampling, acceptance, curriculum, mix: (
        SchedulerSettings(
            queue=QueueSettings(
                group_size=group,
                batch_size=group * batches,
                group_size_by_level={"3": 2},
                bound=bound,
                depth=min(depth, bound),
                max_refill_batches=refills,
                on_failed_rollout=policy,
                max_empty_batches=3,
            ),
            oversampling=oversampling,
            acceptance=acceptance,
            curriculum=curriculum,
            sources=mix,
            stop=StopSettings(steps=5),
            checkpoint=CheckpointSettings(every_steps=every),
            eval=EvalSettings(num_tasks=2, every_steps=2),
            rollout_timeout_s=30.0,
            max_sandboxes=8,
            verify_sandboxes=1,
        )
    ),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(-1, 3),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from(["shrink", "void"]),
    st.builds(
        OversamplingSettings,
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(["cancel", "finish"]),
    ),
    st.builds(AcceptanceSettings, st.sampled_from([0.0, 0.2]), st.sampled_from([0.8, 1.0])),
    st.builds(
        CurriculumSettings,
        levels=st.sampled_from([(), (1, 2, 3)]),
        explore=st.sampled_from([0.0, 0.2]),
        retire_after=st.integers(0, 2),
        retire_at=st.just(0.75),
        return_after_steps=st.integers(0, 2),
    ),
    st.sampled_from([(), MIX]),
)
sim_settings = st.builds(
    SimSettings,
    max_running=st.integers(2, 16),
    tokens_sigma=st.sampled_from([0.0, 0.6, 1.2]),
    train_s=st.sampled_from([0.1, 2.0, 20.0]),
    apply_s=st.sampled_from([0.01, 3.0]),
    solve_rate=st.sampled_from([0.1, 0.5, 1.0]),
    num_tasks=st.sampled_from([0, 5]),
    p_environment_fails=probability,
    p_infrastructure_fails=probability,
    p_hangs=probability,
    p_ignores_cancel=st.sampled_from([0.0, 0.5]),
    p_score_fails=probability,
    p_sandbox_lost=probability,
    p_verdict_drops=st.sampled_from([0.0, 0.3]),
    p_repeated=st.sampled_from([0.0, 0.1]),
)


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32))
def test_every_run_ends_conserves_its_rollouts_and_respects_the_bound(
    queue: SchedulerSettings, sim: SimSettings, seed: int
) -> None:
    run = simulate(queue, sim, seed)
    finish = run.entries[-1].commands[-1]
    assert isinstance(finish, Finish)
    assert finish.outcome in ("steps", "no_signal", "failed", "all_stale")
    assert_conserved(run.entries)
    assert_within_bound(run.entries, queue.queue.bound)
    state = run.scheduler.state
    kept = {rollout.id for group in state.groups.values() for rollout in group.rollouts}
    assert set(run.scheduler.index.rollouts) == kept
    for note in all_notes(run.entries, GroupSettled):
        assert note.num_rollouts <= max(queue.queue.group_size, 3)


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32), st.integers(1, 400))
def test_a_restored_snapshot_and_a_rebuilt_index_go_on_exactly(
    queue: SchedulerSettings, sim: SimSettings, seed: int, at: int
) -> None:
    run = simulate(queue, sim, seed)
    scheduler = Scheduler(queue)
    for number, entry in enumerate(run.entries):
        if number == at:
            scheduler = Scheduler.restore(queue, scheduler.snapshot())
        assert scheduler.handle(entry.event, entry.t) == (entry.commands, entry.notes)
        if number % 23:
            continue
        anew, kept = Index(scheduler.state), scheduler.index
        assert (anew.num_late, anew.num_running, anew.load) == (kept.num_late, kept.num_running, kept.load)
        assert set(anew.met) == set(kept.met)
        assert set(anew.complete) == set(kept.complete)


@LOOSE
@given(scheduler_settings, sim_settings, st.integers(0, 2**32), st.lists(st.integers(1, 600), max_size=3))
def test_killed_anywhere_a_run_resumes_and_trains_nothing_twice(
    queue: SchedulerSettings, sim: SimSettings, seed: int, kills: list[int]
) -> None:
    play_lives(queue, sim, seed, kills)
