"""A run written by hand, with times and numbers that can be added up on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n
from headway.core.facts import ModelFacts
from headway.core.records import VersionSpan
from headway.telemetry.header import JournalHeader, new_header
from headway.telemetry.journal import Journal, JournalWriter, read_journal
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry, Stat

MODEL = ModelFacts(
    num_params=44, num_layers=1, hidden=2, num_heads=1, num_kv_heads=1, head_dim=2, intermediate=3, vocab=5,
    max_context_tokens=64,
)  # fmt: skip


def make_header(bound=2, steps=2, wall_s=0.0, **more) -> JournalHeader:
    queue = {"queue": {"bound": bound}, "stop": {"steps": steps, "wall_s": wall_s}}
    return new_header(config={"run": {"name": "by-hand"}}, seed=7, queue=queue, **more)


class Script:
    """Builds records in order; each method adds one entry or a few."""

    def __init__(self) -> None:
        self.records: list[Entry | Stat] = []
        self.num_events = 0

    def event(self, t, event, *more):
        commands = tuple(item for item in more if type(item).__name__ in c.COMMANDS)
        notes = tuple(item for item in more if type(item).__name__ in n.NOTES)
        assert len(commands) + len(notes) == len(more)
        self.records.append(Entry(self.num_events, t, event, commands, notes))
        self.num_events += 1

    def stat(self, t, **values):
        self.records.append(Stat(t, values))

    def start(self, t, *rollouts, attempt=0, purpose="train"):
        """Start rollouts, named `group.index`."""
        starts = [
            c.StartRollout(name, attempt, name.split(".")[0], "train/0", purpose, "main", 1, 1.0, "r0")
            for name in rollouts
        ]
        self.event(t, e.TaskOffered(0, "train/0", 0), *starts)

    def turn(self, t, rollout, turn=0, *, versions=(0,), prefill=0.0, decode=0.0, attempt=0):
        spans = tuple(VersionSpan(0, number, 2) for number in versions)
        event = e.TurnEnded(rollout, attempt, turn, "r0", spans, 4, 8, 0.0, prefill, decode, "stop")
        self.event(t, event)

    def end(self, t, rollout, num_tokens, *, attempt=0, turns=1, tools=0, truncated=False):
        spans = (VersionSpan(0, 0, num_tokens),)
        self.event(
            t, e.RolloutEnded(rollout, attempt, "p:0:1", spans, turns, tools, 4, num_tokens, truncated)
        )

    def score(self, t, rollout, reward, *more, duration=0.0, sandbox=0.0, attempt=0, metrics=None):
        scored = e.Scored(rollout, attempt, 1, reward, (), duration, sandbox, metrics or {})
        self.event(t, scored, *more)

    def quick(self, t, rollout, reward, num_tokens=4, *more):
        """End and score a rollout that was started before."""
        self.end(t, rollout, num_tokens)
        self.score(t, rollout, reward, *more)

    def step(self, t, step, compute_s, *more, num_tokens=10, num_trained=5, **metrics):
        self.event(t, e.StepEnded(step - 1, step, compute_s, num_tokens, num_trained, metrics), *more)

    def write(self, path: Path, header: JournalHeader) -> None:
        writer = JournalWriter(path)
        writer.write_header(header)
        for record in self.records:
            if isinstance(record, Stat):
                writer.write_stat(record.t, record.values)
            else:
                writer.write_event(record.seq, record.t, record.event, record.commands, record.notes)
        writer.close()

    def metrics(self, header: JournalHeader | None = None) -> RunMetrics:
        metrics = RunMetrics(header or make_header())
        for record in self.records:
            metrics.feed(record)
        return metrics


def group_settled(group, fate, rewards, purpose="train"):
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    highest, lowest = max(rewards, default=0.0), min(rewards, default=0.0)
    return n.GroupSettled(group, "train/0", 0, purpose, fate, len(rewards), mean, highest, lowest)


def released(step, groups, rollouts, trajectory, tokens, queued=0):
    """Return the note and the command of a batch."""
    rows = tuple(c.Row(name, name.split(".")[0], "p:0:1", 1.0) for name in rollouts)
    note = n.BatchReleased(step - 1, step, groups, len(rollouts), 0, trajectory, tokens, queued)
    return note, c.Train(step - 1, step, rows)


def settled(fate, tokens: dict[str, int]):
    return [n.RolloutSettled(name, name.split(".")[0], fate, count) for name, count in tokens.items()]


def whole_run() -> Script:
    """Two steps, three groups of two, one of them without signal; an evaluation before and after."""
    s = Script()
    s.event(0.0, e.RunStarted())
    s.event(3.0, e.ReplicaJoined("r0", 0, 0, 0, 8))
    s.event(3.0, e.EvalDue(), n.EvalStarted(0, 0, 1))
    s.start(3.0, "v0.0", purpose="eval")
    s.quick(9.0, "v0.0", 0.25, 3, *settled("evaluated", {"v0.0": 3}), n.EvalEnded(0, 0, 1, 0, 0.25))
    s.start(10.0, "g0.0", "g0.1")
    s.start(10.0, "g1.0", "g1.1")
    # g0.0: 5 s, of which sandbox .5 + .1, prefill .3, decode 1.5, tool .3, score .3
    s.turn(12.0, "g0.0", 0, prefill=0.2, decode=1.0)
    s.event(12.0, e.SandboxWanted("g0.0", 0, "sb0", "rollout"), c.GrantSandbox("g0.0", 0, "sb0"))
    s.event(12.5, e.SandboxReady("g0.0", 0, "sb0", 0.5))
    s.event(13.0, e.ToolEnded("g0.0", 0, 0, 0, 0.3, "exit"))
    s.turn(14.0, "g0.0", 1, prefill=0.1, decode=0.5)
    s.end(14.0, "g0.0", 6, turns=2, tools=1)
    s.score(15.0, "g0.0", 1.0, duration=0.4, sandbox=0.1)
    # g0.1: 10 s, of which prefill .5, decode 2.5, score 1
    s.turn(18.0, "g0.1", 0, prefill=0.5, decode=2.5)
    s.end(18.0, "g0.1", 10, truncated=True)
    s.score(20.0, "g0.1", 0.0, c.Signal("g0", (("g0.0", 1.0), ("g0.1", 0.0))), duration=1.0)
    s.event(
        20.0, e.GroupSignal("g0", (("g0.0", 0.5), ("g0.1", -0.5))), group_settled("g0", "queued", [1.0, 0.0])
    )
    batch = released(1, ("g0",), ("g0.0", "g0.1"), (0, 0), ((0, 16),))
    s.event(21.0, e.WorkerJoined("trainer", "t"), *batch)
    s.quick(22.0, "g1.0", 1.0)
    s.quick(22.0, "g1.1", 1.0)
    s.event(
        22.0, e.GroupSignal("g1", (("g1.0", 0.0), ("g1.1", 0.0))),
        group_settled("g1", "filtered", [1.0, 1.0]), n.Refilled("g1", 1, 1),
        *settled("filtered", {"g1.0": 4, "g1.1": 4}),
    )  # fmt: skip
    s.start(22.0, "g2.0", "g2.1")
    s.step(
        25.0, 1, 4.0, *settled("trained", {"g0.0": 6, "g0.1": 10}), num_tokens=40, num_trained=16, loss=0.5
    )
    s.event(26.0, e.VersionPublished(0, 1, 1.0, "m1", 100), c.ApplyVersion(("r0",), 0, 1, "m1", "keep"))
    s.event(26.5, e.VersionApplied("r0", 0, 0, 1, 0.5))
    s.turn(26.5, "g2.0", 0, versions=(0,))
    s.event(26.5, e.ToolEnded("g2.0", 0, 0, 0, 0.0, "exit"))
    s.turn(27.0, "g2.0", 1, versions=(0, 1))
    s.end(27.0, "g2.0", 6, turns=2, tools=1)
    s.score(27.0, "g2.0", 1.0)
    s.quick(28.0, "g2.1", 0.0, 14)
    s.event(
        28.0, e.GroupSignal("g2", (("g2.0", 0.5), ("g2.1", -0.5))), group_settled("g2", "queued", [1.0, 0.0]),
        *released(2, ("g2",), ("g2.0", "g2.1"), (1, 1), ((0, 5), (1, 15))),
    )  # fmt: skip
    s.stat(30.0, driver_cpu_s=0.5, scheduler_s=0.25, journal_s=0.125)
    s.step(
        34.0, 2, 6.0, *settled("trained", {"g2.0": 6, "g2.1": 14}), n.Stopping("steps", "2 steps are done"),
        num_tokens=50, num_trained=20, loss=0.25,
    )  # fmt: skip
    s.event(35.0, e.CheckpointDone(2, "step-2", 1.0))
    s.event(35.5, e.VersionPublished(0, 2, 3.0, "m2", 100))
    s.event(36.0, e.VersionApplied("r0", 0, 0, 2, 1.5), n.EvalStarted(0, 2, 1))
    s.start(36.0, "v1.0", purpose="eval")
    s.quick(39.0, "v1.0", 0.75, 3, *settled("evaluated", {"v1.0": 3}), n.EvalEnded(0, 2, 1, 1, 0.75))
    s.stat(40.0, driver_cpu_s=1.0, scheduler_s=0.5, journal_s=0.25)
    s.event(40.0, e.DeadlinePassed(), c.Finish("steps", "2 steps are done", False))
    return s


class Kit:
    """What the tests of this room share."""

    Script = Script
    MODEL = MODEL
    header = staticmethod(make_header)
    group_settled = staticmethod(group_settled)
    released = staticmethod(released)
    settled = staticmethod(settled)
    whole_run = staticmethod(whole_run)


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture
def whole_journal(tmp_path) -> Journal:
    header = make_header(model=MODEL, usd_per_hour=3.6, peak_flops_per_s=10_000.0)
    whole_run().write(tmp_path / "journal.jsonl", header)
    return read_journal(tmp_path)
