"""The scheduler: `handle(event, now) -> (commands, notes)`.

It consumes events from a driver, waits for nothing and reads no clock. Each event updates the state, then
the rules run in one fixed order; what they decide comes back as commands and notes.

Invariants:
- The same settings and the same events at the same times give the same commands and notes, byte for byte.
- Every rollout that was started is settled exactly once within the surviving lineage.
- Every wait has a deadline in `state.deadlines`; the earliest is always covered by a WakeAt.
- Whether the rules run changes nothing when they have nothing to do. The bulk of all events, answers and tool
  calls of rollouts that go on, touches nothing that a rule looks at: after them the rules are left out if
  they had nothing to do after the event before (`_is_calm`). A property test compares both ways.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from headway.core.codec import from_plain, to_plain
from headway.core.events import (
    CheckpointDone,
    CommandRefused,
    DeadlinePassed,
    DiskFull,
    EvalDue,
    Event,
    GroupSignal,
    Noticed,
    PartEnded,
    ReplicaChanged,
    ReplicaJoined,
    ReplicaLost,
    RolledBack,
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    RolloutResumed,
    RunResumed,
    RunStarted,
    SandboxLost,
    SandboxReady,
    SandboxRefused,
    SandboxReleased,
    SandboxWanted,
    Scored,
    ScoreFailed,
    SettingChanged,
    StepEnded,
    StopAsked,
    TaskOffered,
    TasksExhausted,
    ToolEnded,
    TurnEnded,
    VerdictGiven,
    VersionApplied,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from headway.core.notes import Ignored, Note
from headway.queue import (
    admission,
    batching,
    choice,
    concurrency,
    evaluation,
    groups,
    guard,
    judging,
    partial,
    pruning,
    recovery,
    resuming,
    rollouts,
    sandboxes,
    stopping,
    streaming,
    versions,
    waits,
)
from headway.queue.context import Context
from headway.queue.index import Index
from headway.queue.settings import ELSEWHERE, verify_places
from headway.queue.state import ACTIVE, State

if TYPE_CHECKING:
    from headway.core.commands import Command
    from headway.queue.settings import SchedulerSettings
    from headway.queue.state import GroupState

SECTIONS = (
    "queue",
    "oversampling",
    "acceptance",
    "curriculum",
    "pruning",
    "concurrency",
    "guard",
    "staleness",
    "partial",
    "recovery",
    "eval",
    "stop",
    "checkpoint",
    "deadlines",
)  # whose settings may change during a run

RolloutEvent = (
    TurnEnded
    | ToolEnded
    | RolloutParked
    | RolloutResumed
    | VerdictGiven
    | RolloutEnded
    | RolloutFailed
    | Scored
    | ScoreFailed
)

_CALM = frozenset((TurnEnded, ToolEnded, SandboxReady, SandboxReleased))


class Scheduler:
    """The one state machine that both drivers use."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._base = settings
        self.settings = settings
        self.state = State()
        self.index = Index(self.state)
        self._calm = False  # the rules had nothing to do when they last ran

    def handle(self, event: Event, now: float) -> tuple[list[Command], list[Note]]:
        """Take one fact at time `now` (seconds since the run began) and return what follows from it."""
        ctx = Context(self.settings, self.state, self.index, now, [], [])
        if self.state.phase == "finished" and not isinstance(event, RunResumed):
            ctx.note(Ignored(type(event).__name__, "finished"))
            return ctx.commands, ctx.notes
        self._take(ctx, event)
        if not (type(event) in _CALM and self._is_calm(ctx, event)):
            num = len(ctx.commands) + len(ctx.notes)
            self._run_rules(ctx)
            self._calm = num == len(ctx.commands) + len(ctx.notes)
        waits.cover(ctx)
        return ctx.commands, ctx.notes

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as plain JSON values."""
        return to_plain(self.state)

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Scheduler:
        """Return a scheduler that goes on exactly where `snapshot` was taken."""
        scheduler = cls(settings)
        scheduler.state = from_plain(State, snapshot)
        scheduler.index = Index(scheduler.state)
        scheduler._refresh_settings()
        return scheduler

    def _is_calm(self, ctx: Context, event: Event) -> bool:
        """Whether no rule can have anything to do after this event, one of `_CALM`.

        It asked for nothing itself; the rules had nothing to do after the event before; and none of them
        waits for the time: the start of sandboxes at a set rate, or after a pause that the provider asked
        for. The start and the end of a sandbox matter to those that wait for one and to the run's end. Lost
        steps are left to the rules, for they give up plans without a word.
        """
        if not self._calm or ctx.commands or ctx.notes:
            return False
        state, wanted = self.state, self.index.wanted
        if state.planned_until > state.step:
            return False
        waits = bool(wanted["rollout"] or wanted["verify"])
        if type(event) is SandboxReady or type(event) is SandboxReleased:
            return not waits and state.phase == "running"
        return not waits or not (self.settings.max_sandbox_starts_per_s or state.refusals.until_s)

    def _refresh_settings(self) -> None:
        changed: dict[str, dict[str, Any]] = {}
        flat: dict[str, Any] = {}
        for key, value in self.state.overrides.items():
            section, _, name = key.partition(".")
            if key in ELSEWHERE:
                flat[ELSEWHERE[key]] = value
            else:
                changed.setdefault(section, {})[name] = value
        if "max_sandboxes" in flat:
            flat["verify_sandboxes"] = verify_places(flat["max_sandboxes"])
            flat["ready_sandboxes"] = min(self._base.ready_sandboxes, flat["max_sandboxes"] // 4)
        sections = {
            name: dataclasses.replace(getattr(self._base, name), **values) for name, values in changed.items()
        }
        self.settings = dataclasses.replace(self._base, **sections, **flat)

    def _run_rules(self, ctx: Context) -> None:
        """Every rule, in the one order that matters: what frees a place runs before what fills it.

        A rule that ends the run leaves its end to those before it, and perhaps no event follows: once more.
        """
        phase = self.state.phase
        self._run_each_rule(ctx)
        if self.state.phase == "stopping" != phase:
            self._run_each_rule(ctx)

    def _run_each_rule(self, ctx: Context) -> None:
        judging.run(ctx)
        groups.settle_complete(ctx)
        stopping.failing(ctx)
        ended = evaluation.end(ctx)
        if ended is not None:
            stopping.evaluated(ctx, ended)
        evaluation.begin(ctx)
        evaluation.fill(ctx)
        sandboxes.grant(ctx)
        versions.publish(ctx)
        versions.save(ctx)
        versions.apply(ctx)
        resuming.restart(ctx)
        batching.release(ctx)
        partial.resume(ctx)
        admission.admit(ctx)
        batching.release_rest(ctx)
        stopping.finish(ctx)

    def _take(self, ctx: Context, event: Event) -> None:
        match event:
            case (
                TurnEnded()
                | ToolEnded()
                | RolloutParked()
                | RolloutResumed()
                | VerdictGiven()
                | RolloutEnded()
                | RolloutFailed()
                | Scored()
                | ScoreFailed()
            ):
                self._take_rollout(ctx, event)
            case SandboxWanted():
                found = ctx.find(event.rollout)
                if (
                    found is None
                    or found[1].attempt != event.attempt
                    or found[1].station not in (*ACTIVE, "scoring")
                ):
                    ctx.note(Ignored("SandboxWanted", event.sandbox))
                else:
                    sandboxes.wanted(ctx, found[1], event)
            case SandboxReady():
                sandboxes.ready(ctx, event)
            case SandboxRefused():
                sandboxes.refused(ctx, event)
            case SandboxReleased() | SandboxLost():
                sandboxes.gone(ctx, event)
            case TaskOffered():
                self._take_task(ctx, event)
            case TasksExhausted():
                self._take_exhausted(ctx, event)
            case GroupSignal():
                group = self.state.groups.get(event.group)
                if group is None or group.stage != "signalling":
                    ctx.note(Ignored("GroupSignal", event.group))
                else:
                    groups.signalled(ctx, group, event)
            case PartEnded():
                streaming.part_ended(ctx, event)
            case StepEnded():
                if self.state.trainer != "training" or event.batch != self.state.next_batch - 1:
                    ctx.note(Ignored("StepEnded", str(event.step)))
                else:
                    batching.step_ended(ctx, event)
                    if not guard.step_ended(ctx, event):
                        self._after_step(ctx)
            case VersionPublished():
                versions.published(ctx, event)
            case VersionApplied():
                versions.applied(ctx, event)
            case CheckpointDone():
                versions.saved(ctx, event)
            case RolledBack():
                recovery.rolled_back(ctx, event)
            case _:
                self._take_run(ctx, event)

    def _take_run(self, ctx: Context, event: Event) -> None:
        """Events about the run and its workers."""
        state = self.state
        match event:
            case RunStarted():
                self._begin_life(ctx)
            case RunResumed():
                resuming.resumed(ctx, event)
                self._begin_life(ctx)
            case WorkerJoined():
                if event.role == "trainer":
                    recovery.trainer_joined(ctx)
                elif event.worker not in state.workers:
                    state.workers.append(event.worker)
                else:
                    ctx.met(f"restart:{event.worker}")
                self._maybe_start(ctx)
            case ReplicaJoined():
                recovery.replica_joined(ctx, event)
                self._maybe_start(ctx)
            case ReplicaLost():
                recovery.replica_lost(ctx, event)
            case WorkerLost():
                recovery.worker_lost(ctx, event)
            case CommandRefused():
                text = f"{event.message} ({event.command} of {event.target} could not be carried out)"
                stopping.stop(ctx, "failed", text, failed=True)
            case DiskFull():
                stopping.stop(ctx, "disk_full", event.message, failed=True)
            case Noticed():
                ctx.warn(event.code, event.text)
            case StopAsked():
                stopping.stop(ctx, "interrupted", event.reason, failed=False)
            case EvalDue():
                evaluation.due(ctx)
            case SettingChanged():
                self._change_setting(ctx, event)
            case DeadlinePassed():
                state.wake_at_s = None
                waits.passed(ctx)
            case ReplicaChanged():
                for group, rollout in concurrency.changed(ctx, event):
                    partial.park(ctx, group, rollout)
            case _:
                raise TypeError(f"unknown event {type(event).__name__}")

    def _begin_life(self, ctx: Context) -> None:
        self.state.life_began_s = ctx.now
        ctx.expect("start", self.settings.deadlines.start_s)

    def _maybe_start(self, ctx: Context) -> None:
        state, settings = self.state, self.settings
        complete = (
            (state.trainer_joined or settings.eval.only)
            and len(state.workers) >= settings.num_environment_workers
            and len(state.replicas) >= settings.num_replicas
        )
        if state.phase != "starting" or not complete:
            return
        ctx.met("start")
        state.phase = "running"
        if settings.eval.only:
            stopping.only_evaluate(ctx)
            return
        if settings.eval.at_start and state.step == 0 and state.evaluated < 0:
            evaluation.due(ctx)
        if settings.stop.wall_s:  # from the life's beginning, but a life that starts ends in order
            left_s = settings.stop.wall_s - state.spent_wall_s - (ctx.now - state.life_began_s)
            ctx.expect("wall", max(0.0, left_s))
        guard.begin(ctx)
        stopping.after_step(ctx)

    def _after_step(self, ctx: Context) -> None:
        every = self.settings.eval.every_steps
        if self.state.phase == "running" and every and self.state.step % every == 0:
            evaluation.due(ctx)
        stopping.after_step(ctx)

    def _take_rollout(self, ctx: Context, event: RolloutEvent) -> None:
        found = ctx.find(event.rollout)
        if found is None or found[1].attempt != event.attempt:
            ctx.note(Ignored(type(event).__name__, event.rollout))
            return
        group, rollout = found
        active = rollout.station in ACTIVE
        match event:
            case TurnEnded() if active and event.turn >= rollout.num_turns:
                rollouts.turn_ended(ctx, group, rollout, event)
                pruning.after_turn(ctx, group, rollout)
            case VerdictGiven() if active:
                pruning.verdict(ctx, group, rollout, event)
            case ToolEnded() if active and event.call >= rollout.num_calls:
                rollouts.tool_ended(ctx, rollout, event)
            case RolloutParked() if rollout.station == "running":
                partial.parked(ctx, group, rollout, event)
            case RolloutResumed() if rollout.station == "parked":
                partial.resumed(ctx, group, rollout, event)
            case RolloutEnded() if active:
                rollouts.ended(ctx, group, rollout, event)
            case RolloutFailed(cause="disk_full") if active:
                rollouts.unwritten(ctx, group, rollout)
                stopping.stop(ctx, "disk_full", event.message, failed=True)
            case RolloutFailed() if active:
                rollouts.failed(ctx, group, rollout, event)
            case Scored() if rollout.station == "scoring" and event.tries == rollout.score_tries:
                rollouts.scored(ctx, group, rollout, event)
            case ScoreFailed() if rollout.station == "scoring" and event.tries == rollout.score_tries:
                rollouts.score_failed(ctx, group, rollout, event)
            case _:
                ctx.note(Ignored(type(event).__name__, event.rollout))
        if rollout.station == "lost":
            pruning.after_loss(ctx, group)

    def _take_task(self, ctx: Context, event: TaskOffered) -> None:
        group = self.state.groups.get(self.state.requests.get(event.request, ""))
        over = self.state.phase == "stopping" and group is not None and group.purpose == "train"
        if group is None or group.stage != "requested" or not self.state.replicas or over:
            ctx.note(Ignored("TaskOffered", str(event.request)))
            return
        if group.purpose == "eval" and 0 < event.num_tasks <= group.index:  # the split has begun anew
            self._exhausted(ctx, group)
            return
        again = bool(group.rollouts)
        choice.offered(ctx, group, event)
        admission.start_group(ctx, group, event.task_id, event.level)
        if again:
            resuming.restart_unfinished(ctx, group)

    def _take_exhausted(self, ctx: Context, event: TasksExhausted) -> None:
        group = self.state.groups.get(self.state.requests.get(event.request, ""))
        if group is None:
            ctx.note(Ignored("TasksExhausted", str(event.request)))
            return
        self._exhausted(ctx, group)

    def _exhausted(self, ctx: Context, group: GroupState) -> None:
        stopping.close(ctx, group)  # it has rollouts when it was in flight in an earlier life
        if group.purpose == "train":
            choice.exhausted(ctx, group)
        else:
            evaluation.exhausted(ctx)

    def _change_setting(self, ctx: Context, event: SettingChanged) -> None:
        section, _, name = event.key.partition(".")
        if section not in SECTIONS and event.key not in ELSEWHERE:
            return  # another room's: the journal records it
        if section in SECTIONS:
            fields = {field.name for field in dataclasses.fields(getattr(self.settings, section))}
            if name not in fields:
                ctx.warn("setting", f"{section} has no setting {name!r}; nothing changed")
                return
        before = dict(self.state.overrides)
        self.state.overrides[event.key] = event.value
        self._refresh_settings()
        changed: Any = getattr(self.settings, section, None)
        if not event.checked and hasattr(changed, "problems"):
            problem = next(iter(changed.problems()), None)
            if problem is not None:
                self.state.overrides = before
                self._refresh_settings()
                text = f"{section}.{problem.key}: {problem.rule} (got {problem.value!r}); nothing changed"
                ctx.warn("setting", text)
        ctx.settings = self.settings
        if event.key == "guard.paused":
            if not self.settings.guard.paused:
                guard.resume(ctx)
            elif self.state.phase == "running":
                guard.begin(ctx)
        self.index.judged_at = None
