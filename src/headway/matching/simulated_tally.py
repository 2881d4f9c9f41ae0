"""What a simulated run did, in memory that does not grow with its steps.

Takes journal lines as they are made and gives the metrics of telemetry under the same names: exact but for
percentiles, which are within one per cent. Answers and tool calls, the bulk of all events, cost nothing here;
what they add up to is in the attempts that the simulation knows. A number of first steps may be left out,
while the run fills up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

from headway.core import commands, events, notes
from headway.matching.sketch import Sketch
from headway.telemetry.depth import Level, QueueDepth
from headway.telemetry.tails import histogram, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headway.matching.simulated_rollouts import SimRollout

_KEPT = ("trained", "evaluated", "carried")
_NOT_REJECTED = (*_KEPT, "stopped", "unused")
_MAX_GROUPS = 2048  # whose latencies are remembered until they settle
_NEITHER = ("stopped", "unused", "carried", "evaluated")
_PARTS = ("queue_s", "parked_s", "sandbox_start_s", "prefill_s", "decode_s", "tool_s", "score_s")
_SKETCHES = (
    *(f"rl.latency.{part}" for part in (*_PARTS, "end_to_end_s")),
    *(f"rl.rollout.{name}" for name in ("tokens", "turns", "tool_calls")),
    "rl.sandbox.start_s", "rl.group.straggler_ratio", "rl.weights.publish_s", "rl.weights.pause_s",
)  # fmt: skip


class Tally:
    """Counts over the training window, as telemetry draws it, from after `warmup_steps` steps."""

    def __init__(
        self, known: Mapping[str, SimRollout], solved_reward: float, bound: int, warmup_steps: int = 0
    ) -> None:
        self._known = known
        self._solved_reward = solved_reward
        self._bound = bound
        self._warmup_steps = warmup_steps
        self.outcome, self.message = "unfinished", ""
        self.now = 0.0
        self.step = 0
        self._depth = QueueDepth()
        self._live, self._starting, self._in_flight, self._parked = Level(), Level(), Level(), Level()
        self._members: dict[str, set[str]] = {}  # of groups that are not settled: scored rollouts
        self._accepted: set[str] = set()  # rollouts in the queue
        self._groups: dict[str, tuple[float, float, int]] = {}  # -> max, sum and number of its latencies
        self._zero: dict[str, bool] = {}
        self._granted: dict[str, bool] = {}  # sandboxes -> whether they run
        self._released = 0  # rollouts of the batch that is being trained
        self._opened: float | None = None
        self._stopped: float | None = None
        self._begin()
        self._takes: dict[type, Callable[[float, Any], None]] = {
            events.RolloutEnded: self._left,
            events.RolloutFailed: self._left,
            events.RolloutParked: lambda t, _: _change(self._parked, t, 1),
            events.RolloutResumed: lambda t, _: _change(self._parked, t, -1),
            events.SandboxReady: self._sandbox_ready,
            events.SandboxReleased: self._sandbox_gone,
            events.SandboxLost: self._sandbox_gone,
            events.Scored: self._scored,
            events.GroupSignal: self._signalled,
            events.StepEnded: self._step_ended,
            events.VersionPublished: self._published,
            events.VersionApplied: lambda _, event: self._sketches["rl.weights.pause_s"].add(event.pause_s),
            events.CheckpointDone: self._saved,
            commands.StartRollout: self._started,
            commands.GrantSandbox: self._sandbox_granted,
            commands.Finish: self._finished,
            notes.RolloutSettled: self._settled,
            notes.GroupSettled: self._group_settled,
            notes.GroupSplit: self._split,
            notes.BatchReleased: self._batch_released,
            notes.Refilled: lambda _, note: self._count("refills"),
            notes.NoSignal: lambda _, note: self._count("empty_batches"),
            notes.Warned: lambda _, note: self._warnings.update((note.code,)),
            notes.Stopping: lambda t, _: self._stopping(t),
        }

    def take(
        self, _: int, t: float, event: events.Event, asked: list[commands.Command], said: list[notes.Note]
    ) -> None:
        """Take a journal line."""
        self.now = t
        takes = self._takes
        if (found := takes.get(type(event))) is not None and not _is_ignored(event, said):
            found(t, event)
        if not asked and not said:
            return
        for command in asked:
            if type(command) is commands.StartRollout:
                self._started(t, command)
        for note in said:
            if (found := takes.get(type(note))) is not None:
                found(t, note)
        for command in asked:
            if type(command) is not commands.StartRollout and (found := takes.get(type(command))) is not None:
                found(t, command)

    # --- the window

    def _begin(self) -> None:
        """Count from nothing."""
        self._sketches = {name: Sketch() for name in _SKETCHES}
        self._counts: Counter[str] = Counter()
        self._accepted.clear()  # whoever was accepted before is not discarded here
        self._warnings: Counter[str] = Counter()
        self._compute_s = self._gathered_s = self._publish_s = self._save_s = 0.0
        self._last_step = 0.0
        self._num_rollouts = self._num_solved = self._num_truncated = 0
        self._num_finished = self._num_late_finished = 0
        self._num_steps = self._num_trained = self._trained_tokens = self._train_tokens = 0
        self._trajectory: Counter[int] = Counter()
        self._token: Counter[int] = Counter()
        self._environment: Counter[int] = Counter()
        self._fates: Counter[str] = Counter()
        self._fate_tokens: Counter[str] = Counter()
        self._over: Counter[str] = Counter()  # oversampling: rollouts by what became of them
        self._over_tokens: Counter[str] = Counter()

    def _open(self, t: float) -> None:
        self._begin()
        self._opened = self._last_step = t
        depth = self._depth
        depth.all, depth.signal = _from(depth.all, t), _from(depth.signal, t)
        self._live, self._starting = _from(self._live, t), _from(self._starting, t)
        self._in_flight, self._parked = _from(self._in_flight, t), _from(self._parked, t)

    def _stopping(self, t: float) -> None:
        if self._stopped is None:
            self._stopped = t
            self._depth.advance(t)
            self._depth.stopping()

    def _count(self, name: str) -> None:
        self._counts[name] += 1

    # --- rollouts

    def _started(self, t: float, command: commands.StartRollout) -> None:
        _change(self._in_flight, t, 1)
        if command.purpose != "train":
            return
        if self._opened is None and not self._warmup_steps:
            self._open(t)
        self._depth.advance(t)
        self._depth.started(t, command.group, command.rollout)

    def _left(self, t: float, event: events.RolloutEnded | events.RolloutFailed) -> None:
        _change(self._in_flight, t, -1)
        if isinstance(event, events.RolloutFailed) and event.owner != "scheduler":
            self._counts[f"failed.{event.owner}"] += 1

    def _scored(self, t: float, event: events.Scored) -> None:
        rollout = self._known.get(event.rollout)
        if rollout is None or rollout.purpose != "train" or rollout.scored:
            return
        rollout.scored = True
        self._members.setdefault(rollout.group, set()).add(event.rollout)
        whole = t - rollout.began_s
        parts = {
            "parked_s": rollout.stood_s,
            "sandbox_start_s": rollout.sandbox_start_s + event.sandbox_start_s,
            "prefill_s": rollout.sum_prefill_s,
            "decode_s": rollout.sum_decode_s,
            "tool_s": rollout.sum_tool_s,
            "score_s": max(0.0, event.duration_s - event.sandbox_start_s),
        }
        sketches, explained = self._sketches, sum(parts.values())
        if explained > whole:  # a tool call went on while the rollout was parked
            parts = {name: part * whole / explained for name, part in parts.items()}
        sketches["rl.latency.queue_s"].add(max(0.0, whole - explained))
        for name, part in parts.items():
            sketches[f"rl.latency.{name}"].add(part)
        sketches["rl.latency.end_to_end_s"].add(whole)
        sketches["rl.rollout.tokens"].add(rollout.num_sampled)
        sketches["rl.rollout.turns"].add(rollout.turn)
        sketches["rl.rollout.tool_calls"].add(rollout.num_calls)
        self._num_rollouts += 1
        self._num_solved += event.reward >= self._solved_reward
        self._num_truncated += rollout.plan.truncated
        if self._stopped is None:
            self._num_finished += 1
        else:
            self._num_late_finished += 1
        self._environment.update(rollout.environment_ages)
        most, total, num = self._groups.get(rollout.group, (0.0, 0.0, 0))
        if len(self._groups) > _MAX_GROUPS:  # groups that were set aside never settle
            del self._groups[next(iter(self._groups))]
        self._groups[rollout.group] = (max(most, whole), total + whole, num + 1)

    def _settled(self, t: float, note: notes.RolloutSettled) -> None:
        if note.group[0] != "t":
            return
        fate, num_tokens = note.fate, note.num_tokens
        self._depth.advance(t)
        self._depth.rollout_settled(note.group, note.rollout)
        self._fates[fate] += 1
        self._fate_tokens[fate] += num_tokens
        rollout = self._known.get(note.rollout)
        if note.rollout in self._accepted:
            self._accepted.discard(note.rollout)
            self._counts["rejected"] += fate not in _NOT_REJECTED
        elif (members := self._members.get(note.group)) is not None:
            members.discard(note.rollout)
            if not members:
                del self._members[note.group]
        if fate in _NEITHER:
            return
        kind = "kept"
        if fate == "cancelled":
            kind = "finished" if rollout is not None and rollout.ended else "unfinished"
        elif fate.startswith("failed_"):
            kind = "errored"
        self._over[kind] += 1
        self._over_tokens[kind] += num_tokens

    # --- groups and batches

    def _signalled(self, _: float, event: events.GroupSignal) -> None:
        self._zero[event.group] = not any(advantage for _, advantage in event.advantages)

    def _group_settled(self, t: float, note: notes.GroupSettled) -> None:
        if note.purpose != "train":
            return
        zero = self._zero.pop(note.group, None)
        most, total, num = self._groups.pop(note.group, (0.0, 0.0, 0))
        counts = self._counts
        members = self._members.pop(note.group, set())
        counts["scored"] += note.num_rollouts
        if note.fate == "queued":
            self._accepted |= members
            counts["accepted"] += note.num_rollouts
            self._depth.advance(t)
            self._depth.queued(note.group)
        if note.fate != "voided":
            counts["decided"] += 1
            counts["zero"] += (note.fate == "filtered") if zero is None else zero
        if note.num_rollouts:
            counts["settled"] += 1
            counts["all_solved"] += note.min_reward >= self._solved_reward
            counts["all_failed"] += note.max_reward < self._solved_reward
        if num > 1 and total > 0.0:
            self._sketches["rl.group.straggler_ratio"].add(most * num / total)

    def _split(self, _: float, note: notes.GroupSplit) -> None:
        self._depth.split(note.group, note.into, note.rollouts)
        moved = self._members.get(note.group, set()) & set(note.rollouts)
        if moved:
            self._members[note.group] -= moved
            self._members.setdefault(note.into, set()).update(moved)

    def _batch_released(self, t: float, note: notes.BatchReleased) -> None:
        self._released = note.num_rollouts
        self._trajectory.update(note.trajectory_staleness)
        for age, num_tokens in note.token_staleness:
            self._token[age] += num_tokens
        self._depth.advance(t)
        self._depth.released(note.groups)

    def _step_ended(self, t: float, event: events.StepEnded) -> None:
        self.step = event.step
        self._last_step = t
        self._num_steps += 1
        self._num_trained += self._released
        self._trained_tokens += event.num_trained_tokens
        self._train_tokens += event.num_tokens
        self._compute_s += event.compute_s
        self._gathered_s += event.gathered_s
        self._num_finished += self._num_late_finished
        self._num_late_finished = 0
        self._depth.step_ended()
        if event.step == self._warmup_steps:
            self._open(t)

    def _published(self, _: float, event: events.VersionPublished) -> None:
        self._sketches["rl.weights.publish_s"].add(event.publish_s)
        if self._stopped is None:
            self._publish_s += event.publish_s

    def _saved(self, _: float, event: events.CheckpointDone) -> None:
        if self._stopped is None:
            self._save_s += event.duration_s

    def _finished(self, t: float, command: commands.Finish) -> None:
        self._stopping(t)
        for level in (self._live, self._starting, self._in_flight, self._parked):
            level.advance(t)
        self.outcome, self.message = command.outcome, command.message

    # --- sandboxes

    def _sandbox_granted(self, t: float, command: commands.GrantSandbox) -> None:
        if command.sandbox not in self._granted:
            self._granted[command.sandbox] = False
            _change(self._live, t, 1)
            _change(self._starting, t, 1)

    def _sandbox_ready(self, t: float, event: events.SandboxReady) -> None:
        self._sketches["rl.sandbox.start_s"].add(event.start_s)
        if self._granted.get(event.sandbox) is False:
            self._granted[event.sandbox] = True
            _change(self._starting, t, -1)

    def _sandbox_gone(self, t: float, event: events.SandboxReleased | events.SandboxLost) -> None:
        self._counts["sandboxes_lost"] += isinstance(event, events.SandboxLost)
        runs = self._granted.pop(event.sandbox, None)
        if runs is not None:
            _change(self._live, t, -1)
            _change(self._starting, t, 0 if runs else -1)

    # --- what it comes to

    def summary(self) -> dict[str, Any]:
        """Return the metrics; None where the run does not tell one."""
        counts = self._counts
        close = self.now if self._stopped is None else max(self._stopped, self._last_step)
        window_s = 0.0 if self._opened is None else max(0.0, close - self._opened)
        busy_s = self._compute_s + self._publish_s
        whole = max(window_s, busy_s)
        production = ratio(self._num_finished, window_s)
        acceptance = ratio(counts["accepted"] - counts["rejected"], counts["scored"])
        return {
            "outcome": self.outcome,
            "message": self.message,
            "mode": {0: "sync", 1: "one-step-off"}.get(self._bound, "async"),
            "steps": self._num_steps,
            "wall_s": self.now,
            "window_s": window_s,
            "num_rollouts": self._num_rollouts,
            "rl.production.samples_per_s": production,
            "rl.production.effective_samples_per_s": None
            if production is None or acceptance is None
            else production * acceptance,
            "rl.production.acceptance_fraction": acceptance,
            "rl.consumption.active_samples_per_s": ratio(self._num_trained, self._compute_s),
            "rl.consumption.wall_samples_per_s": ratio(self._num_trained, window_s),
            "rl.trainer.wait_fraction": ratio(max(0.0, whole - busy_s), whole),
            "rl.trainer.compute_fraction": ratio(self._compute_s, whole),
            "rl.trainer.publish_fraction": ratio(self._publish_s, whole),
            "rl.trainer.checkpoint_fraction": ratio(self._save_s, whole),
            "rl.trainer.streamed_fraction": ratio(self._gathered_s, self._compute_s),
            "rl.queue.depth.all": self._depth.all.summary(),
            "rl.queue.depth.signal": self._depth.signal.summary(),
            "rl.queue.refills": counts["refills"],
            "rl.staleness.trajectory": histogram(self._trajectory),
            "rl.staleness.token": histogram(self._token),
            "rl.staleness.environment": histogram(self._environment),
            **self._discards(),
            **self._oversampling(),
            "rl.group.zero_advantage_fraction": ratio(counts["zero"], counts["decided"]),
            "rl.group.all_solved_fraction": ratio(counts["all_solved"], counts["settled"]),
            "rl.group.all_failed_fraction": ratio(counts["all_failed"], counts["settled"]),
            "rl.group.settled": counts["settled"],
            "rl.pass_at.1": ratio(self._num_solved, self._num_rollouts),
            "rl.pass_at.n": ratio(counts["settled"] - counts["all_failed"], counts["settled"]),
            "rl.rollout.truncated_fraction": ratio(self._num_truncated, self._num_rollouts),
            **{name: sketch.summary() for name, sketch in self._sketches.items()},
            "rl.sandbox.live": self._live.summary(),
            "rl.sandbox.starting": self._starting.summary(),
            "rl.sandbox.error_fraction": ratio(
                counts["sandboxes_lost"], counts["sandboxes_lost"] + self._sketches["rl.sandbox.start_s"].num
            ),
            "rl.cost.trained_tokens": self._trained_tokens,
            "sim.train_tokens": self._train_tokens,
            "sim.rollouts.in_flight": self._in_flight.summary(),
            "sim.rollouts.parked": self._parked.summary(),
            "sim.empty_batches": counts["empty_batches"],
            "sim.warnings": dict(sorted(self._warnings.items())),
        }

    def _discards(self) -> dict[str, object]:
        keys: dict[str, object] = {}
        lost = lost_tokens = 0
        for fate in get_args(notes.Fate):
            if fate not in _KEPT:
                keys[f"rl.discard.{fate}.rollouts"] = self._fates[fate]
                keys[f"rl.discard.{fate}.tokens"] = self._fate_tokens[fate]
                lost += self._fates[fate]
                lost_tokens += self._fate_tokens[fate]
        keys["rl.discard.rollout_fraction"] = ratio(lost, self._fates.total())
        keys["rl.discard.token_fraction"] = ratio(lost_tokens, self._fate_tokens.total())
        return keys

    def _oversampling(self) -> dict[str, object]:
        num, tokens = self._over, self._over_tokens
        keys: dict[str, object] = {}
        for kind in ("finished", "unfinished", "errored"):
            keys[f"rl.oversampling.{kind}.rollout_fraction"] = ratio(num[kind], num.total())
            keys[f"rl.oversampling.{kind}.token_fraction"] = ratio(tokens[kind], tokens.total())
        kept, every = ratio(tokens["kept"], num["kept"]), ratio(tokens.total(), num.total())
        keys["rl.oversampling.kept_tokens"], keys["rl.oversampling.all_tokens"] = kept, every
        keys["rl.oversampling.length_ratio"] = None if kept is None or every is None else ratio(kept, every)
        return keys


def _is_ignored(event: events.Event, said: list[notes.Note]) -> bool:
    """Whether an event changed nothing; a sandbox is gone even so."""
    if isinstance(event, events.SandboxReleased | events.SandboxLost):
        return False
    kind = type(event).__name__
    return any(type(note) is notes.Ignored and note.event == kind for note in said)


def _change(level: Level, t: float, by: int) -> None:
    level.advance(t)
    level.set(level.value + by)


def _from(level: Level, t: float) -> Level:
    """Return a level that counts from `t` on."""
    fresh = Level()
    fresh.set(level.value)
    fresh.skip_to(t)
    return fresh
