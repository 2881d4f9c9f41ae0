"""Rollouts and sandboxes of the simulated driver.

Consumes the commands about rollouts; each becomes events some virtual seconds later. An attempt does what its
plan says: it asks its replica for an answer, waits for its tool, and asks again. It is at its replica, at a
tool, waiting for its sandbox, or parked; a replica that dies parks whoever asks it. Attempts are forgotten
when the scheduler has settled their rollout, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headway.core.events import (
    Event,
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    RolloutResumed,
    SandboxLost,
    SandboxReady,
    SandboxReleased,
    SandboxWanted,
    ToolEnded,
    TurnEnded,
)
from headway.core.records import VersionSpan, merge_spans
from headway.core.segments import group_of
from headway.matching.engine_replica import Replica, Request

if TYPE_CHECKING:
    import random

    from headway.core.commands import Cancel, GrantSandbox, Park, ReleaseSandbox, Resume, StartRollout
    from headway.core.events import Owner
    from headway.matching.contracts import Fleet, RolloutPlan
    from headway.matching.roles import Faults, SimModels


class Stage(Protocol):
    """What the simulated driver offers to its parts."""

    models: SimModels
    faults: Faults
    fleet: Fleet
    rng: random.Random
    now_s: float

    @property
    def step(self) -> int:
        """Optimizer steps applied."""
        ...

    def stream(self, seed: int, attempt: int) -> random.Random:
        """Return an attempt's own source of chance."""
        ...

    def feed(self, event: Event) -> None:
        """Let an event happen now; only from an action of the heap."""
        ...

    def tell(self, event: Event) -> None:
        """Let an event happen now, unless something goes wrong with it; only from an action of the heap."""
        ...

    def later(self, delay_s: float, event: Event) -> None:
        """Let an event happen later, unless something goes wrong with it."""
        ...

    def at(self, delay_s: float, action: Callable[..., None], argument: Any = None) -> None:
        """Do something later."""
        ...

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens."""
        ...


class SimRollout(Request):
    """One attempt on its way."""

    __slots__ = (
        "asks", "attempt", "began_s", "ended", "environment_ages", "hangs", "ignores_cancel", "num_calls",
        "num_sampled", "over", "parked", "parked_s", "plan", "purpose", "replica", "sandbox",
        "sandbox_start_s", "scored", "shaped_by", "spans", "stood_s", "sum_decode_s", "sum_prefill_s",
        "sum_tool_s", "turn", "turn_version", "waits_for_sandbox",
    )  # fmt: skip

    def __init__(self, command: StartRollout, plan: RolloutPlan, now_s: float) -> None:
        super().__init__(command.rollout, command.group, command.priority)
        self.attempt, self.replica, self.purpose = command.attempt, command.replica, command.purpose
        self.plan = plan
        self.prompt_tokens = self.context_tokens = plan.prompt_tokens
        self.turn = 0
        self.num_calls = 0
        self.num_sampled = 0
        self.spans: list[VersionSpan] = []  # of the answers that ended, one answer after another
        self.sandbox = ""
        self.hangs = self.ignores_cancel = False
        self.over = self.ended = self.scored = False  # ended: with a payload
        self.parked = False
        self.parked_s = 0.0  # since when
        self.asks = False  # it wants an answer: at its replica, or parked in the midst of one
        self.waits_for_sandbox = False
        self.began_s = now_s
        self.stood_s = self.sandbox_start_s = 0.0  # parked; its sandboxes' starts
        self.sum_prefill_s = self.sum_decode_s = self.sum_tool_s = 0.0
        self.turn_version = 0  # oldest version of the newest answer
        self.shaped_by: int | None = None  # oldest version whose tool calls shaped the sandbox
        self.environment_ages: list[int] = []  # as telemetry counts them: one an answer that acts on such


class SimRollouts:
    """All rollouts of one simulated life."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._turns_fail = bool(stage.faults.p_environment_fails or stage.faults.p_infrastructure_fails)
        self.replicas: dict[str, Replica] = {}
        self.known: dict[str, SimRollout] = {}  # newest attempts of rollouts that are not settled

    # --- commands

    def start(self, command: StartRollout) -> None:
        """Begin an attempt, or go on from a parked one of an earlier life."""
        stage, faults = self._stage, self._stage.faults
        plan = self.plan(command.task_id, command.rollout, command.attempt, command.seed, command.purpose)
        rollout = SimRollout(command, plan, stage.now_s)
        rollout.hangs = stage.happens(faults.p_hangs)
        rollout.ignores_cancel = rollout.hangs and stage.happens(faults.p_ignores_cancel)
        self.known[rollout.rollout] = rollout
        begun: list[VersionSpan] = []
        if command.partial:
            _, turn, before, answer = command.partial.split("|")
            rollout.turn, rollout.spans, begun = int(turn), _spans(before), _spans(answer)
            rollout.num_calls = rollout.turn
            rollout.num_sampled = sum(span.num_tokens for span in rollout.spans)
            added = sum(done.observation_tokens for done in plan.turns[: rollout.turn])
            rollout.context_tokens += rollout.num_sampled + added
        if rollout.hangs:
            return
        if rollout.turn >= len(plan.turns):
            stage.at(0.0, self._end, rollout)
        else:
            self._want(rollout)
            if begun:
                rollout.answer = begun
                rollout.num_left = max(1, rollout.num_left - rollout.num_answered)
            self._submit(rollout)

    def plan(self, task_id: str, rollout: str, attempt: int, seed: int, purpose: str) -> RolloutPlan:
        """Return what an attempt is going to do."""
        stage = self._stage
        rng = stage.stream(seed, attempt)
        return stage.models.workload.plan(rng, task_id, rollout, attempt, stage.step, purpose)

    def park(self, command: Park) -> None:
        """Stop decoding; a tool call goes on."""
        rollout = self._attempt(command.rollout, command.attempt)
        if rollout is not None and not rollout.over:
            self._set_aside(rollout, "asked")

    def resume(self, command: Resume) -> None:
        """Go on where a parked rollout stood."""
        rollout = self._attempt(command.rollout, command.attempt)
        if rollout is None or rollout.over or not rollout.parked:
            return
        rollout.parked, rollout.replica = False, command.replica
        parked_s = self._stage.now_s - rollout.parked_s
        rollout.stood_s += parked_s
        held = rollout.context_tokens + (rollout.num_answered if rollout.asks else 0)
        event = RolloutResumed(command.rollout, command.attempt, command.replica, held, parked_s)
        self._stage.later(0.0, event)
        if rollout.asks:
            self._stage.at(0.0, self._submit, rollout)

    def grant(self, command: GrantSandbox) -> None:
        """Start a sandbox, or lose it."""
        stage, rollout = self._stage, self._attempt(command.rollout, command.attempt)
        if rollout is None or rollout.over:
            stage.later(0.0, SandboxReleased(command.rollout, command.attempt, command.sandbox))
            return
        now, recorded = stage.now_s, rollout.plan.sandbox_start_s
        start = stage.fleet.start(stage.rng, now)
        start_s = start.at_s - now if recorded is None else recorded
        ready = SandboxReady(command.rollout, command.attempt, command.sandbox, start_s)
        lost = start.fails or stage.happens(stage.faults.p_sandbox_lost)
        if stage.happens(stage.faults.p_sandbox_lies):
            stage.later(start_s + 10.0 * stage.rng.random(), ready)
        if lost:
            stage.at(start_s, self._sandbox_lost, (rollout, command.sandbox))
        else:
            stage.at(start_s, self._sandbox_ready, (rollout, ready))

    def release(self, command: ReleaseSandbox) -> None:
        """End a sandbox; an attempt that still waits for it has failed."""
        self._stage.later(0.0, SandboxReleased(command.rollout, command.attempt, command.sandbox))
        rollout = self._attempt(command.rollout, command.attempt)
        if rollout is not None and rollout.waits_for_sandbox and rollout.sandbox == command.sandbox:
            self._fail(rollout, "infrastructure", "sandbox")

    def cancel(self, command: Cancel) -> None:
        """End an attempt, unless it would not listen."""
        rollout = self.known.get(command.rollout)
        if rollout is None:  # it ended in an earlier life and is only scored in this one
            event = RolloutFailed(command.rollout, command.attempt, "scheduler", "cancelled", "not here")
            self._stage.later(0.0, event)
        elif rollout.attempt == command.attempt and not rollout.over and not rollout.ignores_cancel:
            self._fail(rollout, "scheduler", "cancelled")

    def settled(self, name: str) -> None:
        """The scheduler has no further use for a rollout."""
        self.known.pop(name, None)

    # --- deaths

    def replica_died(self, replica: Replica) -> None:
        """Whoever asked this replica stands still now."""
        for rollout in self.known.values():
            if rollout.replica == replica.name and rollout.asks and not rollout.parked and not rollout.over:
                self._set_aside(rollout, "engine_lost")

    def worker_died(self, index: int, num_workers: int) -> None:
        """Whatever ran on this environment worker is gone, sandboxes too."""
        for rollout in list(self.known.values()):
            found = group_of(rollout.rollout)
            if rollout.over or found is None or found[1] % num_workers != index:
                continue
            if rollout.sandbox:
                lost = SandboxLost(rollout.rollout, rollout.attempt, rollout.sandbox, "worker_lost")
                self._stage.later(0.0, lost)
            self._fail(rollout, "infrastructure", "worker_lost")

    # --- answers

    def _want(self, rollout: SimRollout) -> None:
        turn = rollout.plan.turns[rollout.turn]
        rollout.asks = True
        rollout.recomputed_tokens = turn.recomputed_tokens
        rollout.ask(turn.answer_tokens)

    def _submit(self, rollout: SimRollout) -> None:
        if rollout.over or rollout.parked or not rollout.asks:
            return
        replica = self.replicas[rollout.replica]
        if replica.dead:
            self._set_aside(rollout, "engine_lost")
        else:
            replica.submit(rollout)

    def turn_ended(self, rollout: SimRollout) -> None:
        """An answer is complete."""
        stage, plan, answer = self._stage, rollout.plan, rollout.answer
        rollout.asks = False
        turn = rollout.turn
        rollout.spans += answer
        context = rollout.context_tokens
        resident = context + (answer[0][2] if len(answer) == 1 else rollout.num_answered)
        rollout.num_sampled += resident - context
        rollout.turn = turn + 1
        rollout.context_tokens = resident + plan.turns[turn].observation_tokens
        rollout.answer = []
        rollout.sum_prefill_s += rollout.prefill_s
        rollout.sum_decode_s += rollout.decode_s
        if answer:
            rollout.turn_version = answer[0][1] if len(answer) == 1 else min(span[1] for span in answer)
            if rollout.shaped_by is not None:
                rollout.environment_ages.append(answer[-1][1] - rollout.shaped_by)
        finish = "length" if plan.truncated and rollout.turn == len(plan.turns) else "stop"
        stage.tell(
            TurnEnded(
                rollout.rollout, rollout.attempt, turn, rollout.replica, tuple(answer), context, resident,
                rollout.waited_s, rollout.prefill_s, rollout.decode_s, finish,
            )
        )  # fmt: skip
        if rollout.over:
            return
        if self._turns_fail and self._failed(rollout):
            return
        if plan.fails_after is not None and rollout.turn >= plan.fails_after:
            cause = "exception" if plan.failure == "environment" else "engine_lost"
            self._fail(rollout, plan.failure, cause)
        elif plan.turns[turn].tool_s is None:
            self._go_on(rollout)
        elif plan.uses_sandbox and not rollout.sandbox:
            rollout.sandbox = f"s-{rollout.rollout}-{rollout.attempt}"
            rollout.waits_for_sandbox = True
            stage.tell(SandboxWanted(rollout.rollout, rollout.attempt, rollout.sandbox, "rollout"))
        else:
            self._use_tool(rollout)

    def _failed(self, rollout: SimRollout) -> bool:
        """Draw whether an attempt fails at the end of an answer."""
        stage, faults = self._stage, self._stage.faults
        if stage.happens(faults.p_environment_fails):
            self._fail(rollout, "environment", "exception")
        elif stage.happens(faults.p_infrastructure_fails):
            self._fail(rollout, "infrastructure", "engine_lost")
        return rollout.over

    def _go_on(self, rollout: SimRollout) -> None:
        if rollout.turn >= len(rollout.plan.turns):
            self._end(rollout)
        else:
            self._want(rollout)
            self._submit(rollout)

    # --- tools and sandboxes

    def _use_tool(self, rollout: SimRollout) -> None:
        tool_s = rollout.plan.turns[rollout.turn - 1].tool_s
        self._stage.at(tool_s or 0.0, self._tool_ended, rollout)

    def _tool_ended(self, rollout: SimRollout) -> None:
        if rollout.over:
            return
        turn = rollout.turn - 1  # one call a turn
        call, rollout.num_calls = rollout.num_calls, rollout.num_calls + 1
        tool_s = rollout.plan.turns[turn].tool_s or 0.0
        rollout.sum_tool_s += tool_s
        if rollout.shaped_by is None or rollout.turn_version < rollout.shaped_by:
            rollout.shaped_by = rollout.turn_version
        self._stage.tell(ToolEnded(rollout.rollout, rollout.attempt, turn, call, tool_s, "exit"))
        if not rollout.over:
            self._go_on(rollout)

    def _sandbox_ready(self, ready: tuple[SimRollout, SandboxReady]) -> None:
        rollout, event = ready
        rollout.sandbox_start_s += event.start_s
        self._stage.tell(event)
        if rollout.waits_for_sandbox and not rollout.over:
            rollout.waits_for_sandbox = False
            self._use_tool(rollout)

    def _sandbox_lost(self, lost: tuple[SimRollout, str]) -> None:
        rollout, sandbox = lost
        self._stage.tell(SandboxLost(rollout.rollout, rollout.attempt, sandbox, "infra", "start"))
        self._fail(rollout, "infrastructure", "sandbox")

    # --- standing still and ending

    def _set_aside(self, rollout: SimRollout, cause: Literal["asked", "engine_lost"]) -> None:
        self._leave(rollout)
        rollout.parked, rollout.parked_s = True, self._stage.now_s
        begun = rollout.answer if rollout.asks else []
        payload = ""
        if self._stage.faults.keeps_partials:
            done = merge_spans(rollout.spans)
            payload = f"partial:{rollout.rollout}|{rollout.turn}|{_text(done)}|{_text(begun)}"
        num_unfinished = sum(span.num_tokens for span in begun)
        told = tuple(merge_spans([*rollout.spans, *begun]))
        event = RolloutParked(rollout.rollout, rollout.attempt, told, payload, cause, num_unfinished)
        self._stage.later(0.0, event)

    def _end(self, rollout: SimRollout) -> None:
        if rollout.over:
            return
        rollout.over = rollout.ended = True
        rollout.spans = merge_spans(rollout.spans)
        self.replicas[rollout.replica].forget(rollout)
        wrote = rollout.context_tokens - rollout.num_sampled
        self._stage.tell(
            RolloutEnded(
                rollout.rollout, rollout.attempt, f"p:{rollout.rollout}:{rollout.attempt}",
                tuple(rollout.spans), rollout.turn, rollout.num_calls, wrote, rollout.num_sampled,
                rollout.plan.truncated,
            )
        )  # fmt: skip

    def _fail(self, rollout: SimRollout, owner: Owner, cause: str) -> None:
        if rollout.over:
            return
        rollout.over = True
        self._leave(rollout)
        num_tokens = rollout.num_sampled + (rollout.num_answered if rollout.asks else 0)
        event = RolloutFailed(rollout.rollout, rollout.attempt, owner, cause, "simulated", num_tokens)
        self._stage.later(0.0, event)

    def _leave(self, rollout: SimRollout) -> None:
        """Give up what the attempt holds of its replica."""
        replica = self.replicas.get(rollout.replica)
        if replica is not None:
            replica.take(rollout)
            replica.forget(rollout)

    def _attempt(self, name: str, number: int) -> SimRollout | None:
        rollout = self.known.get(name)
        return rollout if rollout is not None and rollout.attempt == number else None


def _text(spans: list[VersionSpan]) -> str:
    return " ".join(f"{span.lineage}.{span.number}.{span.num_tokens}" for span in spans)


def _spans(text: str) -> list[VersionSpan]:
    return [VersionSpan(*map(int, span.split("."))) for span in text.split()]
