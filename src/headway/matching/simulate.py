"""The simulated driver: the real scheduler on a virtual clock.

It consumes the scheduler's commands, models what answers them (`roles`), and feeds the answers back from a
heap of timed events. Nothing waits: when the heap is empty before Finish, the run hangs, and that is an
error which names the open waits. Same seed, same simulation, to the byte.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.clock import VirtualClock
from headway.core.codec import dumps
from headway.core.commands import (
    ApplyVersion,
    Cancel,
    Checkpoint,
    Command,
    Finish,
    GrantSandbox,
    Publish,
    ReleaseSandbox,
    RequestTask,
    Score,
    Signal,
    StartRollout,
    Train,
    WakeAt,
)
from headway.core.errors import DeadlineError
from headway.core.events import (
    CheckpointDone,
    DeadlinePassed,
    Event,
    GroupSignal,
    ReplicaJoined,
    RolloutEnded,
    RolloutFailed,
    RunResumed,
    RunStarted,
    SandboxLost,
    SandboxReady,
    SandboxReleased,
    SandboxWanted,
    Scored,
    ScoreFailed,
    StepEnded,
    ToolEnded,
    TurnEnded,
    VersionApplied,
    VersionPublished,
    WorkerJoined,
)
from headway.core.notes import Note
from headway.core.records import merge_spans
from headway.matching.roles import SimReplica, SimRollout, SimSettings, draw_tokens, offer, task_solve_rate
from headway.queue.scheduler import Scheduler

if TYPE_CHECKING:
    from headway.queue.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class SimEntry:
    """What one journal line holds."""

    seq: int
    t: float
    event: Event
    commands: list[Command]
    notes: list[Note]

    def to_bytes(self) -> bytes:
        """Return a canonical form, for comparing two simulations."""
        kinds = [type(item).__name__ for item in (self.event, *self.commands, *self.notes)]
        return dumps([self.seq, self.t, kinds, self.event, self.commands, self.notes]).encode()


@dataclass(slots=True)
class SimRun:
    """What outlives a driver: the scheduler, the journal, and the checkpoints."""

    scheduler: Scheduler
    entries: list[SimEntry] = field(default_factory=list[SimEntry])
    checkpoints: list[int] = field(default_factory=list[int])
    trained: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # step -> rollouts, surviving


class SimulatedDriver:
    """One life of a simulated run."""

    def __init__(
        self, run: SimRun, sim: SimSettings, seed: int, *, lineage: int = 0, start_s: float = 0.0
    ) -> None:
        self.run = run
        self.sim = sim
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.clock.advance_to(start_s)
        self.lineage = lineage
        self.finish: Finish | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._rollouts: dict[str, SimRollout] = {}
        self._replicas: dict[str, SimReplica] = {}
        self._wake_at_s: float | None = None

    # --- the loop

    def play(self, *, max_events: int = 200_000, stop_after: int | None = None) -> Finish | None:
        """Run to Finish; or to `stop_after` events, as if the process was killed there."""
        if self.lineage:
            step = self.run.checkpoints[-1] if self.run.checkpoints else 0
            self.run.trained = {s: rows for s, rows in self.run.trained.items() if s <= step}
            self._feed(RunResumed(self.lineage, step, self.clock.now()))
        else:
            self._feed(RunStarted())
        self._start_workers()
        for count in range(max_events):
            if self.finish is not None or count == stop_after:
                return self.finish
            if not self._heap:
                raise DeadlineError(f"the simulation hangs; open waits: {self.run.scheduler.state.deadlines}")
            at, _, action = heapq.heappop(self._heap)
            self.clock.advance_to(at)
            action()
        raise DeadlineError(f"no Finish after {max_events} events")

    def later(self, delay_s: float, event: Event) -> None:
        """Let `event` happen `delay_s` seconds from now, perhaps twice."""
        self._at(delay_s, lambda: self._feed(event))
        if self.sim.p_repeated and self.rng.random() < self.sim.p_repeated:
            self._at(delay_s + self.rng.random(), lambda: self._feed(event))

    def _at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.clock.now() + delay_s, self._count, action))

    def _feed(self, event: Event) -> None:
        if self.finish is not None:
            return
        now = self.clock.now()
        commands, notes = self.run.scheduler.handle(event, now)
        self.run.entries.append(SimEntry(len(self.run.entries), now, event, commands, notes))
        for command in commands:
            self._obey(command)

    def _start_workers(self) -> None:
        settings = self.run.scheduler.settings
        self.later(self.sim.start_s, WorkerJoined("trainer", "trainer"))
        for index in range(settings.num_environment_workers):
            self.later(self.sim.start_s, WorkerJoined("environment", f"e{index}"))
        for index in range(settings.num_replicas):
            name = f"g{index}"
            self._replicas[name] = SimReplica(name, self.sim.max_running, [(0.0, self.lineage, 0)])
            self.later(self.sim.start_s, ReplicaJoined(name, 0, self.lineage, 0, self.sim.max_running))

    # --- commands

    def _obey(self, command: Command) -> None:
        sim = self.sim
        match command:
            case RequestTask():
                self.later(0.0, offer(command, sim))
            case StartRollout():
                self._start(command)
            case GrantSandbox():
                self._grant(command)
            case ReleaseSandbox():
                self.later(0.0, SandboxReleased(command.rollout, command.attempt, command.sandbox))
            case Cancel():
                self._cancel(command)
            case Score():
                self._score(command)
            case Signal():
                mean = sum(reward for _, reward in command.rewards) / len(command.rewards)
                signal = tuple((name, reward - mean) for name, reward in command.rewards)
                keep = not sim.p_verdict_drops or self.rng.random() >= sim.p_verdict_drops
                self.later(0.0, GroupSignal(command.group, signal, keep, "" if keep else "simulated"))
            case Train():
                self.run.trained[command.step] = [row.rollout for row in command.rows]
                self.later(sim.train_s, StepEnded(command.batch, command.step, sim.train_s, 1, 1))
            case Publish():
                event = VersionPublished(
                    command.lineage, command.number, sim.publish_s, f"v{command.number}", 1
                )
                self.later(sim.publish_s, event)
            case ApplyVersion():
                for name in command.replicas:
                    self._at(sim.apply_s, lambda name=name: self._apply(name, command))
            case Checkpoint():
                self._at(sim.save_s, lambda: self._saved(command.step))
            case WakeAt():
                self._wake(command.at_s)
            case Finish():
                self.finish = command
            case _:
                raise TypeError(f"the simulation cannot {type(command).__name__} yet")

    def _wake(self, at_s: float) -> None:
        self._wake_at_s = at_s

        def wake() -> None:
            if self._wake_at_s == at_s:
                self._feed(DeadlinePassed())

        self._at(max(0.0, at_s - self.clock.now()), wake)

    def _saved(self, step: int) -> None:
        self.run.checkpoints.append(step)
        self._feed(CheckpointDone(step, f"step-{step}", self.sim.save_s))

    def _apply(self, name: str, command: ApplyVersion) -> None:
        self._replicas[name].versions.append((self.clock.now(), command.lineage, command.number))
        self._feed(VersionApplied(name, 0, command.lineage, command.number, self.sim.apply_s))

    # --- rollouts

    def _start(self, command: StartRollout) -> None:
        rollout = SimRollout(command.rollout, command.attempt, command.replica, command.task_id)
        rollout.hangs = self.rng.random() < self.sim.p_hangs
        rollout.ignores_cancel = rollout.hangs and self.rng.random() < self.sim.p_ignores_cancel
        self._rollouts[rollout.rollout] = rollout
        if not rollout.hangs:
            self._ask_turn(rollout)

    def _ask_turn(self, rollout: SimRollout) -> None:
        rollout.waiting_since_s = self.clock.now()
        self._replicas[rollout.replica].line.append(rollout.rollout)
        self._serve(rollout.replica)

    def _serve(self, name: str) -> None:
        replica = self._replicas[name]
        while replica.line and replica.running < replica.slots:
            rollout = self._rollouts[replica.line.pop(0)]
            if rollout.over:
                continue
            replica.running += 1
            rollout.holds_slot = True
            num_tokens = draw_tokens(self.rng, self.sim, rollout.task_id)
            begin = self.clock.now() + self.sim.prefill_s
            rollout.decoding_since_s, rollout.num_drawn = begin, num_tokens
            duration = self.sim.prefill_s + num_tokens * self.sim.token_s
            self._at(duration, lambda r=rollout, n=num_tokens, b=begin: self._turn_ends(r, n, b))

    def _leave_slot(self, rollout: SimRollout) -> None:
        if rollout.holds_slot:
            rollout.holds_slot = False
            self._replicas[rollout.replica].running -= 1
            self._serve(rollout.replica)

    def _turn_ends(self, rollout: SimRollout, num_tokens: int, begin_s: float) -> None:
        if rollout.over:
            return
        sim = self.sim
        spans = self._replicas[rollout.replica].spans(begin_s, sim.token_s, num_tokens)
        rollout.spans = merge_spans([*rollout.spans, *spans])
        waited = begin_s - sim.prefill_s - rollout.waiting_since_s
        self._leave_slot(rollout)
        event = TurnEnded(
            rollout.rollout, rollout.attempt, rollout.turn, rollout.replica, tuple(spans),
            30, 30 + num_tokens, waited, sim.prefill_s, num_tokens * sim.token_s, "stop",
        )  # fmt: skip
        self.later(0.0, event)
        rollout.turn += 1
        draw = self.rng.random()
        if draw < sim.p_environment_fails:
            self._fail(rollout, "environment", "exception")
        elif draw < sim.p_environment_fails + sim.p_infrastructure_fails:
            self._fail(rollout, "infrastructure", "engine_lost")
        elif rollout.turn >= sim.num_turns:
            self._end(rollout)
        elif sim.uses_sandbox and not rollout.sandbox:
            rollout.sandbox = f"s-{rollout.rollout}-{rollout.attempt}"
            self.later(0.0, SandboxWanted(rollout.rollout, rollout.attempt, rollout.sandbox, "rollout"))
        else:
            self._use_tool(rollout)

    def _grant(self, command: GrantSandbox) -> None:
        rollout = self._rollouts[command.rollout]
        if rollout.attempt != command.attempt:
            self.later(0.0, SandboxReleased(command.rollout, command.attempt, command.sandbox))
            return
        start_s = self.sim.sandbox_start_s
        self.later(start_s, SandboxReady(command.rollout, command.attempt, command.sandbox, start_s))
        if self.rng.random() < self.sim.p_sandbox_lost:
            self.later(start_s, SandboxLost(command.rollout, command.attempt, command.sandbox, "infra"))
            self._at(start_s, lambda: self._fail(rollout, "infrastructure", "sandbox"))
        else:
            self._at(start_s, lambda: self._use_tool(rollout))

    def _use_tool(self, rollout: SimRollout) -> None:
        if rollout.over:
            return
        turn = rollout.turn - 1  # one call a turn
        event = ToolEnded(rollout.rollout, rollout.attempt, turn, turn, self.sim.tool_s, "exit")
        self.later(self.sim.tool_s, event)
        self._at(self.sim.tool_s, lambda: None if rollout.over else self._ask_turn(rollout))

    def _end(self, rollout: SimRollout) -> None:
        rollout.over = True
        num_tokens = sum(span.num_tokens for span in rollout.spans)
        self.later(
            0.0,
            RolloutEnded(
                rollout.rollout, rollout.attempt, f"p:{rollout.rollout}:{rollout.attempt}",
                tuple(rollout.spans), rollout.turn, rollout.turn - 1, 30, num_tokens, False,
            ),
        )  # fmt: skip

    def _fail(self, rollout: SimRollout, owner: str, cause: str) -> None:
        if rollout.over:
            return
        rollout.over = True
        num_tokens = sum(span.num_tokens for span in rollout.spans)
        if rollout.holds_slot:
            decoded = int((self.clock.now() - rollout.decoding_since_s) / self.sim.token_s)
            num_tokens += max(0, min(rollout.num_drawn, decoded))
        self._leave_slot(rollout)
        event = RolloutFailed(
            rollout.rollout, rollout.attempt, owner, cause, "simulated", num_tokens  # pyright: ignore
        )  # fmt: skip
        self.later(0.0, event)

    def _cancel(self, command: Cancel) -> None:
        rollout = self._rollouts[command.rollout]
        if rollout.attempt == command.attempt and not rollout.over and not rollout.ignores_cancel:
            self._fail(rollout, "scheduler", "cancelled")

    def _score(self, command: Score) -> None:
        if self.rng.random() < self.sim.p_score_fails:
            event: Event = ScoreFailed(
                command.rollout, command.attempt, command.tries, "timeout", "simulated"
            )
        else:
            step = self.run.scheduler.state.step
            solved = self.rng.random() < task_solve_rate(command.task_id, self.sim, step)
            event = Scored(
                command.rollout, command.attempt, command.tries, float(solved), (), self.sim.score_s, 0.0
            )
        self.later(self.sim.score_s, event)


def simulate(settings: SchedulerSettings, sim: SimSettings, seed: int) -> SimRun:
    """Run a whole simulated run and return its journal."""
    run = SimRun(Scheduler(settings))
    SimulatedDriver(run, sim, seed).play()
    return run
