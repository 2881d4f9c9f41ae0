"""Whatever the cycles are, the controller keeps to its bounds; without change in them it comes to rest."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config.control import ControlSettings
from headway.core.events import RolloutEnded, SettingChanged
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.settings import QueueSettings
from tests.unit.test_matching_control import Run, turn

LEVERS = ("depth", "running", "groups_extra", "rollouts_extra", "batch_wait", "pruning")
shares = st.floats(0.0, 0.95)
cycles = st.lists(
    st.tuples(shares, st.integers(0, 12), st.floats(0.0, 10.0), st.integers(4, 16)), max_size=60
)


@st.composite
def runs(draw):
    bound = draw(st.integers(0, 5))
    queue = QueueSettings(group_size=4, batch_size=16, bound=bound, depth=draw(st.integers(-1, bound)))
    when_met = draw(st.sampled_from(["cancel", "finish"]))
    spare = bound and when_met == "cancel"
    extra = OversamplingSettings(groups_extra=draw(st.integers(0, 2)) if spare else 0, when_met=when_met)
    control = ControlSettings(mode="on", levers=LEVERS, calm_cycles=draw(st.integers(1, 4)))
    return Run(control, queue=queue, oversampling=extra)


@given(runs(), cycles)
@settings(max_examples=60, deadline=None)
def test_values_stay_within_their_bounds(run, played):
    levers = run.controller.levers
    for wait, queued, line, num_rollouts in played:
        for length in (10, 1000):
            run.feed(RolloutEnded("x", 0, "p", (), 1, 0, 1, length, False))
        run.cycle(wait, queued, more=turn(line, 3), num_rollouts=num_rollouts)
        for lever in LEVERS:
            value = levers.value(lever)
            if value or lever not in ("running", "pruning", "batch_wait"):
                assert value <= levers.high(lever), lever
                assert value >= levers.low(lever) or lever == "depth", lever
        assert levers.value("depth") <= levers.now.queue.bound
    for decision in run.decided:
        assert not isinstance(decision, SettingChanged) or (decision.by == "control" and decision.reason)


@given(runs(), shares, st.integers(0, 12), st.floats(0.0, 10.0))
@settings(max_examples=40, deadline=None)
def test_cycles_that_are_all_alike_are_answered_a_bounded_number_of_times(run, wait, queued, line):
    run.cycles(300, wait, queued, more=turn(line))
    early = len(run.changes)
    run.cycles(300, wait, queued, more=turn(line))
    assert len(run.changes) - early <= 16
    assert early <= 80
