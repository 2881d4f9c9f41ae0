"""What the live view knows of the present, and how it is laid out."""

import pytest

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n
from headway.core.records import VersionSpan
from headway.telemetry.header import new_header
from headway.telemetry.live_frame import frame, plain
from headway.telemetry.live_parts import facts
from headway.telemetry.live_state import LiveState
from headway.telemetry.metrics import RunMetrics

CONFIG = {
    "queue": {"batch_size": 4, "group_size": 2, "bound": 2, "depth": -1},
    "sandbox": {"max_live": 3},
    "generator": {"replicas": 1},
    "environment": {"workers": 1},
    "eval": {"num_tasks": 4, "rollouts_per_task": 1},
    "guard": {"action": "warn", "paused": False},
}
QUEUE = {"queue": {"bound": 2}, "stop": {"steps": 10}}


def header(**sections):
    return new_header(config=CONFIG | sections, seed=0, queue=QUEUE)


def seen(script, head=None):
    head = head or header()
    metrics = RunMetrics(head)
    state = LiveState(metrics, head)
    for record in script.records:
        metrics.feed(record)
        state.feed(record)
    return state


def where(script):
    return {flight.rollout: flight.where for flight in seen(script).slowest(10)}


def said(script, label, head=None):
    (found,) = [fact for fact in facts(seen(script, head)) if fact.label == label]
    return [piece.text for piece in found.pieces]


def title(script, now=0.0):
    return plain(frame(seen(script), name="x", now=now, width=99)).partition("\n")[0].strip("─ ")[5:]


def test_where_a_rollout_is_follows_from_what_ended_last(kit):
    s = kit.Script()
    s.start(1.0, "g0.0")
    assert where(s) == {"g0.0": "generating"}
    s.turn(2.0, "g0.0", 0)
    assert where(s) == {"g0.0": "generating"}
    s.event(2.0, e.SandboxWanted("g0.0", 0, "s0", "rollout"))
    assert where(s) == {"g0.0": "sandbox"}
    s.event(2.1, e.SandboxReady("g0.0", 0, "s0", 0.1))
    assert where(s) == {"g0.0": "tool"}
    s.event(2.2, e.ToolEnded("g0.0", 0, 0, 0, 0.1, "exit"))
    assert where(s) == {"g0.0": "generating"}
    s.turn(3.0, "g0.0", 1)
    assert where(s) == {"g0.0": "tool"}
    s.event(3.1, e.RolloutParked("g0.0", 0, (VersionSpan(0, 0, 4),), ""))
    assert where(s) == {"g0.0": "parked"}
    s.event(3.2, e.RolloutResumed("g0.0", 0, "r0", 8, 0.1))
    assert where(s) == {"g0.0": "generating"}
    s.end(4.0, "g0.0", 4)
    assert where(s) == {"g0.0": "scoring"}
    s.score(5.0, "g0.0", 1.0)
    assert where(s) == {}


def test_the_slowest_are_the_oldest_attempts_and_late_events_of_others_change_nothing(kit):
    s = kit.Script()
    s.start(1.0, "g0.0", "g0.1")
    s.start(2.0, "g1.0", attempt=0)
    s.event(3.0, e.RolloutFailed("g0.0", 0, "infrastructure", "sandbox", ""))
    s.start(4.0, "g0.0", attempt=1)
    s.end(5.0, "g0.0", 4, attempt=0)
    state = seen(s)
    assert [(flight.rollout, flight.since) for flight in state.slowest(9)] == [
        ("g0.1", 1.0),
        ("g1.0", 2.0),
        ("g0.0", 4.0),
    ]
    assert state.where == {"generating": 3, "sandbox": 0, "tool": 0, "scoring": 0, "parked": 0}
    s.event(6.0, e.DeadlinePassed(), *kit.settled("stopped", {"g0.1": 0}))
    assert said(s, "in flight") == ["2 rollouts", "2 generating"]


def test_sandboxes_are_counted_from_grant_to_end(kit):
    s = kit.Script()
    s.start(1.0, "g0.0", "g0.1")
    s.event(1.0, e.SandboxWanted("g0.0", 0, "s0", "rollout"), c.GrantSandbox("g0.0", 0, "s0"))
    s.event(1.0, e.SandboxWanted("g0.1", 0, "s1", "rollout"))
    assert said(s, "sandboxes") == ["1 of 3 live", "1 starting", "1 waiting"]
    s.event(1.2, e.SandboxRefused("g0.0", 0, "s0", "no more now"))
    assert said(s, "sandboxes") == ["0 of 3 live", "2 waiting"]
    s.event(1.4, e.DeadlinePassed(), c.GrantSandbox("g0.0", 0, "s0"))
    s.event(1.5, e.SandboxReady("g0.0", 0, "s0", 0.5))
    s.event(2.0, e.RolloutFailed("g0.1", 0, "environment", "exception", ""))
    assert said(s, "sandboxes") == ["1 of 3 live", "start 0.50s", "p99 0.50s"]
    s.event(2.5, e.ToolEnded("g0.0", 0, 0, 0, 0.25, "exit"))
    assert said(s, "sandboxes")[-2:] == ["call 0.25s", "p99 0.25s"]
    s.event(3.0, e.SandboxLost("g0.0", 0, "s0", "infra"))
    assert said(s, "sandboxes")[:2] == ["0 of 3 live", "1 lost"]


def test_the_queue_is_told_against_its_limits_and_a_changed_setting_changes_them(kit):
    s = kit.Script()
    s.start(1.0, "g0.0", "g0.1")
    assert said(s, "queue") == ["1 of 6 groups", "0 of 2 ready", " with signal"]
    s.event(2.0, e.SettingChanged("queue.depth", 1))
    assert said(s, "queue")[0] == "1 of 4 groups"


@pytest.mark.parametrize(
    ("bound", "compute_s", "slow"),
    [(2, 7.0, "generation"), (2, 8.7, "neither"), (2, 9.5, "training"), (0, 5.0, "both take turns")],
)
def test_the_bottleneck_is_the_side_that_the_other_one_waits_for(kit, bound, compute_s, slow):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.step(10.0, 1, compute_s)
    assert said(s, "bottleneck", header(queue={**CONFIG["queue"], "bound": bound}))[0] == slow


def test_training_is_the_bottleneck_while_the_next_batch_is_ready(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.step(10.0, 1, 5.0)
    for group in ("g1", "g2"):
        s.start(10.0, f"{group}.0")
        s.event(11.0, e.GroupSignal(group, ()), kit.group_settled(group, "queued", [1.0, 0.0]))
    assert said(s, "bottleneck")[0] == "generation"
    s.event(12.0, e.DeadlinePassed(), c.Train(1, 2, ()))
    assert said(s, "bottleneck")[0] == "training"


def test_the_title_says_what_goes_on(kit):
    s = kit.Script()
    s.event(0.0, e.RunStarted())
    s.event(1.0, e.WorkerJoined("trainer", "trainer"))
    assert title(s, 8.0) == "starting for 8.00s, 1 of 3 processes are ready"
    s.event(1.0, e.ReplicaJoined("r0", 0, 0, 0, 8))
    s.event(1.0, e.WorkerJoined("environment", "environment0"), n.EvalStarted(0, 0, 4))
    assert title(s) == "evaluating version 0, 0 of 4"
    s.start(2.0, "v0.0", purpose="eval")
    s.quick(3.0, "v0.0", 1.0)
    assert title(s) == "evaluating version 0, 1 of 4"
    s.event(4.0, e.DeadlinePassed(), n.EvalEnded(0, 0, 1, 0, 1.0))
    assert title(s) == "waiting for a batch"
    s.event(5.0, e.DeadlinePassed(), c.Train(0, 1, ()))
    assert title(s, now=7.5) == "training step 1 for 2.50s"
    s.step(8.0, 1, 3.0, c.Publish(0, 1), c.Checkpoint(1))
    assert title(s, now=9.0) == "publishing version 1 for 1.00s; saving step 1"
    s.event(9.0, e.VersionPublished(0, 1, 1.0, "m", 1))
    s.event(9.0, e.CheckpointDone(1, "p", 1.0), n.GuardAlarm("reward", 0.1, 0.2, "pause", 1))
    assert title(s) == "paused"
    assert said(s, "guard")[0] == "paused"
    s.event(10.0, e.SettingChanged("guard.paused", False))
    assert title(s) == "waiting for a batch"
    assert said(s, "guard") == ["1 alarm", "reward 0.1 below 0.2 at step 1", "pause"]
    s.event(11.0, e.StopAsked("SIGINT"), n.Stopping("interrupted", "SIGINT"))
    assert title(s) == "stopping (interrupted)"
    s.event(12.0, e.DeadlinePassed(), c.Finish("interrupted", "SIGINT", False))
    assert title(s) == "finished (interrupted)"
    s.event(13.0, e.RunResumed(1, 1, 12.0))
    assert title(s) == "starting for 0.00s, 0 of 3 processes are ready"


def test_a_resume_leaves_nothing_in_flight_but_what_is_scored_anew(kit):
    s = kit.whole_run()
    s.start(41.0, "g5.0", "g5.1")
    s.event(42.0, e.RunResumed(1, 2, 41.0), c.Score("t5.0", 0, 1, "train/0", "p"))
    state = seen(s)
    assert [(flight.rollout, flight.where) for flight in state.slowest(9)] == [("t5.0", "scoring")]
    assert not state.started
    assert state.rewards() == [record.reward for record in state.metrics.steps.records]


def test_generators_that_tell_their_load_and_one_that_is_lost(kit):
    s = kit.Script()
    s.event(0.0, e.ReplicaJoined("generator0", 0, 0, 3, 8))
    assert said(s, "generator0") == ["version 3"]
    s.event(1.0, e.ReplicaChanged("generator0", 0, 5, 9, 0.95, 1234.4))
    s.event(1.0, e.VersionApplied("generator0", 0, 0, 4, 0.1))
    assert said(s, "generator0") == ["5 running", "9 waiting", "KV 95%", "1,234 tok/s", "version 4"]
    s.event(2.0, e.ReplicaLost("generator0", 0, "gone"))
    s.event(2.0, e.ReplicaChanged("generator0", 0, 5, 9, 0.95, 1234.4))
    assert said(s, "generator0") == ["lost"]
    for index in range(1, 6):
        s.event(3.0, e.ReplicaJoined(f"generator{index}", 0, 0, 4, 8))
        s.event(4.0, e.ReplicaChanged(f"generator{index}", 0, 2, 1, index / 10, 100.0))
    assert said(s, "generators") == ["5 of 6 up", "10 running", "5 waiting", "KV 10% to 50%", "500 tok/s"]


def test_what_the_run_takes_on_disk_and_what_is_free(kit):
    s = kit.Script()
    sizes = {"checkpoints": 3e9, "payloads": 1.5e9, "journal": 2e6, "weights": 0.0, "free": 2e9}
    s.stat(1.0, **{f"disk.{name}_bytes": value for name, value in sizes.items()})
    assert said(s, "disk") == [
        "4.5 GB",
        "2.0 GB free",
        "checkpoints 3.0 GB",
        "payloads 1.5 GB",
        "journal 2.0 MB",
    ]


def test_the_mismatch_of_the_last_step_where_it_had_fresh_tokens(kit):
    s = kit.Script()
    s.step(1.0, 1, 0.5, mismatch_mean=4.5e-7, mismatch_max=3e-6)
    assert said(s, "mismatch") == ["4.5e-07 nats", "max 3e-06"]
    s.step(2.0, 2, 0.5)
    assert "mismatch" not in {fact.label for fact in facts(seen(s))}


@pytest.mark.parametrize("width", [20, 33, 40, 79, 80, 99, 100, 101, 120, 160, 400])
@pytest.mark.parametrize("height", [1, 5, 9, 14, None])
def test_no_line_is_longer_than_the_terminal_and_there_are_no_more_than_its_lines(kit, width, height):
    s = kit.whole_run()
    s.records.pop()  # the end
    s.start(41.0, *[f"a-group-with-quite-a-name.{index}" for index in range(9)])
    s.event(
        42.0, e.DeadlinePassed(), *[n.Warned("code", f"{'long words ' * 30}{index}") for index in range(4)]
    )
    lines = frame(seen(s), name="a-run-" * 20, now=50.0, width=width, height=height)
    texts = [plain([line]) for line in lines]
    assert max(map(len, texts)) <= width
    assert height is None or len(texts) <= height
    assert texts[0].startswith("── a-run")


def test_a_terminal_without_unicode_gets_ascii(kit):
    text = plain(frame(seen(kit.whole_run()), name="x", now=50.0, width=120, ascii_only=True))
    assert text.isascii()
    assert "##" in text
