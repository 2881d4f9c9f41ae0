"""Rollouts, engines and sandboxes of the simulated driver.

Consumes the commands about rollouts; each becomes events some virtual seconds later. A rollout is in line for
a slot, decoding, at a tool, or parked; a replica that dies parks whoever asks it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

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
from headway.matching.roles import SimReplica, SimRollout, SimSettings, draw_tokens, draw_tool_s

if TYPE_CHECKING:
    import random

    from headway.core.clock import VirtualClock
    from headway.core.commands import Cancel, GrantSandbox, Park, Resume, StartRollout
    from headway.core.events import Owner

_PROMPT_TOKENS = 30


class Stage(Protocol):
    """What the simulated driver offers to its parts."""

    sim: SimSettings
    rng: random.Random
    clock: VirtualClock

    def later(self, delay_s: float, event: Event) -> None:
        """Let an event happen later, perhaps twice."""
        ...

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        ...

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens."""
        ...


class SimRollouts:
    """All rollouts of one simulated life."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.replicas: dict[str, SimReplica] = {}
        self._rollouts: dict[str, SimRollout] = {}

    # --- commands

    def start(self, command: StartRollout) -> None:
        """Begin an attempt, or go on from a parked one of an earlier life."""
        sim, rng = self._stage.sim, self._stage.rng
        rollout = SimRollout(command.rollout, command.attempt, command.replica, command.task_id)
        rollout.priority = command.priority
        rollout.hangs = rng.random() < sim.p_hangs
        rollout.ignores_cancel = rollout.hangs and rng.random() < sim.p_ignores_cancel
        self._rollouts[rollout.rollout] = rollout
        answer: list[VersionSpan] = []
        if command.partial:
            _, turn, before, begun = command.partial.split("|")
            rollout.turn, rollout.spans, answer = int(turn), _spans(before), _spans(begun)
        if rollout.turn >= sim.num_turns:
            self._end(rollout)
        elif not rollout.hangs:
            self._ask_turn(rollout)
            rollout.answer = answer

    def park(self, command: Park) -> None:
        """Stop decoding; a tool call goes on."""
        rollout = self._rollouts[command.rollout]
        if rollout.attempt == command.attempt and not rollout.over:
            self._set_aside(rollout, "asked")

    def resume(self, command: Resume) -> None:
        """Go on where a parked rollout stood."""
        rollout = self._rollouts[command.rollout]
        if rollout.attempt != command.attempt or rollout.over or not rollout.parked:
            return
        rollout.parked, rollout.replica = False, command.replica
        event = RolloutResumed(command.rollout, command.attempt, command.replica, self._context(rollout))
        self._stage.later(0.0, event)
        if rollout.asks:
            self._stage.at(0.0, lambda: self._stand_in_line(rollout))

    def grant(self, command: GrantSandbox) -> None:
        """Start a sandbox, or lose it."""
        stage, rollout = self._stage, self._rollouts[command.rollout]
        if rollout.attempt != command.attempt:
            stage.later(0.0, SandboxReleased(command.rollout, command.attempt, command.sandbox))
            return
        start_s = stage.sim.sandbox_start_s
        ready = SandboxReady(command.rollout, command.attempt, command.sandbox, start_s)
        stage.later(start_s, ready)
        if stage.happens(stage.sim.p_sandbox_lies):
            stage.later(start_s + 10.0 * stage.rng.random(), ready)
        if stage.rng.random() < stage.sim.p_sandbox_lost:
            stage.later(start_s, SandboxLost(command.rollout, command.attempt, command.sandbox, "infra"))
            stage.at(start_s, lambda: self._fail(rollout, "infrastructure", "sandbox"))
        else:
            stage.at(start_s, lambda: self._use_tool(rollout))

    def cancel(self, command: Cancel) -> None:
        """End an attempt, unless it would not listen."""
        rollout = self._rollouts.get(command.rollout)
        if rollout is None:  # it ended in an earlier life and is only scored in this one
            event = RolloutFailed(command.rollout, command.attempt, "scheduler", "cancelled", "not here")
            self._stage.later(0.0, event)
        elif rollout.attempt == command.attempt and not rollout.over and not rollout.ignores_cancel:
            self._fail(rollout, "scheduler", "cancelled")

    def replica_died(self, replica: SimReplica) -> None:
        """Whoever asked this replica stands still now."""
        for rollout in self._rollouts.values():
            if rollout.replica == replica.name and rollout.asks and not rollout.parked and not rollout.over:
                self._set_aside(rollout, "engine_lost")

    def worker_died(self, index: int, num_workers: int) -> None:
        """Whatever ran on this environment worker is gone, sandboxes too."""
        for rollout in list(self._rollouts.values()):
            found = group_of(rollout.rollout)
            if rollout.over or found is None or found[1] % num_workers != index:
                continue
            if rollout.sandbox:
                lost = SandboxLost(rollout.rollout, rollout.attempt, rollout.sandbox, "worker_lost")
                self._stage.later(0.0, lost)
            self._fail(rollout, "infrastructure", "worker_lost")

    # --- memory

    def resident(self, replica: SimReplica) -> dict[str, int]:
        """Return the tokens that each decoding request of a replica holds in memory now."""
        now, token_s = self._stage.clock.now(), self._stage.sim.token_s
        tokens: dict[str, int] = {}
        for name in list(replica.decoding):
            rollout = self._rollouts[name]
            new = max(0, min(rollout.num_left, int((now - rollout.begin_s) / token_s)))
            tokens[name] = self._context(rollout) + new
        return tokens

    def begun(self, name: str) -> float:
        """Return when a decoding request was served."""
        return self._rollouts[name].begin_s

    def preempt(self, name: str) -> None:
        """Take a request's memory; it stands first in line."""
        rollout = self._rollouts[name]
        replica = self.replicas[rollout.replica]
        replica.line.insert(0, name)
        rollout.waiting_since_s = self._stage.clock.now()
        self._leave_slot(rollout, whole=False)

    def _fits(self, replica: SimReplica, rollout: SimRollout) -> bool:
        capacity = self._stage.sim.kv_tokens
        if not capacity or not replica.decoding:
            return True
        return sum(self.resident(replica).values()) + self._context(rollout) <= capacity

    def _context(self, rollout: SimRollout) -> int:
        return _PROMPT_TOKENS + sum(span.num_tokens for span in (*rollout.spans, *rollout.answer))

    # --- answers

    def _ask_turn(self, rollout: SimRollout) -> None:
        if rollout.over:
            return
        rollout.asks = True
        rollout.num_left = draw_tokens(self._stage.rng, self._stage.sim, rollout.task_id)
        rollout.answer, rollout.waited_s, rollout.prefill_s = [], 0.0, 0.0
        if not rollout.parked:
            self._stand_in_line(rollout)

    def _stand_in_line(self, rollout: SimRollout) -> None:
        if rollout.over or rollout.parked:
            return
        replica = self.replicas[rollout.replica]
        if replica.dead:
            self._set_aside(rollout, "engine_lost")
            return
        rollout.waiting_since_s = self._stage.clock.now()
        insort(replica.line, rollout.rollout, key=lambda name: self._rollouts[name].priority)
        self._serve(replica)

    def _serve(self, replica: SimReplica) -> None:
        stage = self._stage
        while replica.line and replica.running < replica.slots and not replica.dead:
            rollout = self._rollouts[replica.line[0]]
            waits = rollout.asks and not (rollout.over or rollout.parked or rollout.decoding)
            waits = waits and rollout.replica == replica.name
            if waits and not self._fits(replica, rollout):
                return
            del replica.line[0]
            if not waits:
                continue
            replica.running += 1
            replica.decoding[rollout.rollout] = None
            rollout.decoding = True
            rollout.part += 1
            rollout.waited_s += stage.clock.now() - rollout.waiting_since_s
            prefill_s = stage.sim.prefill_s + stage.sim.prefill_token_s * self._context(rollout)
            rollout.prefill_s += prefill_s
            rollout.begin_s = stage.clock.now() + prefill_s
            part = rollout.part
            duration = prefill_s + rollout.num_left * stage.sim.token_s
            stage.at(duration, lambda r=rollout, p=part: self._turn_ends(r, p))

    def _leave_slot(self, rollout: SimRollout, *, whole: bool) -> None:
        """Keep the tokens decoded so far: all, or as many as the time allowed, one less than all at most."""
        if not rollout.decoding:
            return
        stage, replica = self._stage, self.replicas[rollout.replica]
        rollout.decoding = False
        rollout.part += 1
        passed = (stage.clock.now() - rollout.begin_s) / stage.sim.token_s
        num = rollout.num_left if whole else max(0, min(rollout.num_left - 1, int(passed)))
        spans = replica.spans(rollout.begin_s, stage.sim.token_s, num)
        rollout.answer = merge_spans([*rollout.answer, *spans])
        rollout.num_left -= num
        replica.running -= 1
        replica.decoding.pop(rollout.rollout, None)
        self._serve(replica)

    def _turn_ends(self, rollout: SimRollout, part: int) -> None:
        if rollout.over or rollout.part != part:
            return
        stage, sim = self._stage, self._stage.sim
        self._leave_slot(rollout, whole=True)
        rollout.asks = False
        rollout.spans = merge_spans([*rollout.spans, *rollout.answer])
        num_tokens = sum(span.num_tokens for span in rollout.answer)
        event = TurnEnded(
            rollout.rollout, rollout.attempt, rollout.turn, rollout.replica, tuple(rollout.answer),
            _PROMPT_TOKENS, _PROMPT_TOKENS + num_tokens, rollout.waited_s, rollout.prefill_s,
            num_tokens * sim.token_s, "stop",
        )  # fmt: skip
        stage.later(0.0, event)
        rollout.answer = []
        rollout.turn += 1
        draw = stage.rng.random()
        if draw < sim.p_environment_fails:
            self._fail(rollout, "environment", "exception")
        elif draw < sim.p_environment_fails + sim.p_infrastructure_fails:
            self._fail(rollout, "infrastructure", "engine_lost")
        elif rollout.turn >= sim.num_turns:
            self._end(rollout)
        elif sim.uses_sandbox and not rollout.sandbox:
            rollout.sandbox = f"s-{rollout.rollout}-{rollout.attempt}"
            stage.later(0.0, SandboxWanted(rollout.rollout, rollout.attempt, rollout.sandbox, "rollout"))
        else:
            self._use_tool(rollout)

    def _use_tool(self, rollout: SimRollout) -> None:
        if rollout.over:
            return
        turn = rollout.turn - 1  # one call a turn
        tool_s = draw_tool_s(self._stage.rng, self._stage.sim)
        event = ToolEnded(rollout.rollout, rollout.attempt, turn, turn, tool_s, "exit")
        self._stage.later(tool_s, event)
        self._stage.at(tool_s, lambda: self._ask_turn(rollout))

    # --- standing still and ending

    def _set_aside(self, rollout: SimRollout, cause: Literal["asked", "engine_lost"]) -> None:
        self._leave_slot(rollout, whole=False)
        rollout.parked = True
        spans = merge_spans([*rollout.spans, *rollout.answer])
        payload = ""
        if self._stage.sim.keeps_partials:
            before, begun = _text(rollout.spans), _text(rollout.answer)
            payload = f"partial:{rollout.rollout}|{rollout.turn}|{before}|{begun}"
        num_unfinished = sum(span.num_tokens for span in rollout.answer)
        told = tuple(spans)
        event = RolloutParked(rollout.rollout, rollout.attempt, told, payload, cause, num_unfinished)
        self._stage.later(0.0, event)

    def _end(self, rollout: SimRollout) -> None:
        rollout.over = True
        num_tokens = sum(span.num_tokens for span in rollout.spans)
        num_calls = max(0, rollout.turn - 1)
        self._stage.later(
            0.0,
            RolloutEnded(
                rollout.rollout, rollout.attempt, f"p:{rollout.rollout}:{rollout.attempt}",
                tuple(rollout.spans), rollout.turn, num_calls, _PROMPT_TOKENS, num_tokens, False,
            ),
        )  # fmt: skip

    def _fail(self, rollout: SimRollout, owner: Owner, cause: str) -> None:
        if rollout.over:
            return
        rollout.over = True
        self._leave_slot(rollout, whole=False)
        num_tokens = sum(span.num_tokens for span in [*rollout.spans, *rollout.answer])
        event = RolloutFailed(rollout.rollout, rollout.attempt, owner, cause, "simulated", num_tokens)
        self._stage.later(0.0, event)


def _text(spans: list[VersionSpan]) -> str:
    return " ".join(f"{span.lineage}.{span.number}.{span.num_tokens}" for span in spans)


def _spans(text: str) -> list[VersionSpan]:
    return [VersionSpan(*map(int, span.split("."))) for span in text.split()]
