"""The rollout host: runs environments' coroutines and scores what they leave, one process's share of them.

Consumes StartRollout, Cancel, GrantSandbox, ReleaseSandbox and Score as method calls; answers every one by
an event through `emit`. `run` owns one TaskGroup and waits until `close`. A rollout waits for its engine
and its sandbox; each of those waits ends by an answer or by Cancel, which the scheduler sends at its own
deadline. A score waits at most `timeout_s`, grants for its sandbox apart.

Invariants: the payload is on disk before RolloutEnded; an attempt ends by exactly one RolloutEnded or
RolloutFailed of its own; an attempt that fails gives its sandbox back before it says so; a coroutine that
swallows its cancellation is reported and abandoned after the grace, and holds nobody up.

Not safe against an environment that blocks the event loop (time.sleep, endless loops): only the end of the
process helps there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from headway.core.clock import stopwatch
from headway.core.commands import Cancel, GrantSandbox, ReleaseSandbox, Score, StartRollout
from headway.core.errors import EngineError, EnvironmentFault
from headway.core.events import (
    Event,
    Owner,
    RolloutEnded,
    RolloutFailed,
    SandboxReleased,
    Scored,
    ScoreFailed,
)
from headway.core.payload import Payload, PayloadWriter, read_payload
from headway.core.protocols import Engine, Environment, Outcome, SandboxProvider
from headway.core.records import Task
from headway.environments.conversation import Conversation, GenerationLimits
from headway.environments.faults import PayloadError, describe_exception, owner_and_cause, score_cause
from headway.environments.lease import SandboxLease
from headway.environments.supervised import AbandonedError, OverdueError, supervise
from headway.renderers.chat import Renderer
from headway.rewards.check import checked

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What the host needs of `[environment]` and `[reward]`."""

    score_timeout_s: float = 30.0
    cancel_grace_s: float = 2.0


@dataclass(slots=True)
class _Attempt:
    """One running attempt, or the scoring of one."""

    work: asyncio.Task[None] | None = None
    cancelled: str | None = None  # the scheduler's reason
    over: bool = False  # its ending was told


class RolloutHost:
    """Runs rollouts and scores of one environment against one or more engines."""

    def __init__(
        self,
        environment: Environment,
        engines: Mapping[str, Engine],
        renderer: Renderer,
        provider: SandboxProvider,
        payloads: PayloadWriter,
        payload_dir: Path,
        emit: Callable[[Event], None],
        limits: GenerationLimits,
        run_id: str,
        settings: HostSettings | None = None,
    ) -> None:
        self._environment = environment
        self._engines = engines
        self._renderer = renderer
        self._provider = provider
        self._payloads = payloads
        self._payload_dir = payload_dir
        self._emit = emit
        self._limits = limits
        self._run_id = run_id
        self._settings = settings or HostSettings()
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self._leases: dict[str, SandboxLease] = {}
        self._closing = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.num_abandoned = 0  # coroutines that would not be cancelled; the process must end hard

    async def run(self) -> None:
        """Serve until `close`; then end every attempt and every sandbox."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._closing.wait()
                for attempt in self._attempts.values():
                    if attempt.work is not None:
                        attempt.work.cancel()
        finally:
            self._closing.set()
            for lease in list(self._leases.values()):
                await self._release(lease)

    def close(self) -> None:
        """Let `run` end; nothing is emitted for what it interrupts."""
        self._closing.set()

    def start(self, command: StartRollout, task: Task) -> None:
        """Run one rollout; answered by RolloutEnded or RolloutFailed."""
        attempt = self._attempts.setdefault((command.rollout, command.attempt), _Attempt())
        attempt.work = self._spawn(self._rollout(command, task, attempt))

    def score(self, command: Score, task: Task) -> None:
        """Score a finished rollout; answered by Scored or ScoreFailed."""
        attempt = self._attempts.setdefault((command.rollout, command.attempt), _Attempt())
        attempt.work = self._spawn(self._score(command, task, attempt))

    def cancel(self, command: Cancel) -> None:
        """End an attempt; answered by RolloutFailed with owner scheduler."""
        attempt = self._attempts.get((command.rollout, command.attempt))
        if attempt is None or attempt.work is None or attempt.work.done():
            self._emit(self._cancelled(command, "nothing of this attempt runs here"))
        elif attempt.cancelled is None:
            attempt.cancelled = command.reason
            attempt.work.cancel()

    def grant(self, command: GrantSandbox) -> None:
        """A wanted sandbox may be created; answered by SandboxReady, SandboxLost or SandboxReleased."""
        lease = self._leases.get(command.sandbox)
        if lease is None:
            self._emit(SandboxReleased(command.rollout, command.attempt, command.sandbox))
        else:
            lease.grant()

    def release(self, command: ReleaseSandbox) -> None:
        """End a sandbox; answered by SandboxReleased, also when it is gone already."""
        lease = self._leases.get(command.sandbox)
        if lease is None:
            self._emit(SandboxReleased(command.rollout, command.attempt, command.sandbox))
        else:
            self._spawn(self._release(lease))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._group is None:
            work.close()
            raise RuntimeError("RolloutHost.run must be running before commands arrive")
        return self._group.create_task(work)

    async def _rollout(self, command: StartRollout, task: Task, attempt: _Attempt) -> None:
        lease = self._lease(command, attempt, f"{command.rollout}.{command.attempt}", "rollout")
        chat: Conversation | None = None
        failure: tuple[Owner, str, str] | None = None
        ended: RolloutEnded | None = None
        try:
            chat = self._conversation(command, attempt)
            lease.turn = lambda: chat.num_turns - 1
            outcome = await self._supervise(self._environment.rollout(task, chat, lease))
            ended = self._finish(command, task, chat, outcome, lease)
        except asyncio.CancelledError:
            if attempt.cancelled is None:  # the host closes
                raise
            failure = "scheduler", "cancelled", attempt.cancelled
        except Exception as error:  # the environment's code may raise anything
            words = describe_exception(error)
            failure = (*owner_and_cause(error), words)
            if attempt.cancelled is not None:
                failure = "scheduler", "cancelled", f"{attempt.cancelled}; then {words}"
        finally:
            if ended is None or not lease.used:
                await self._release(lease)
            if chat is not None:
                await chat.close()
            self._forget(command, attempt)
        if self._closing.is_set():
            return
        self._emit(ended or RolloutFailed(command.rollout, command.attempt, *failure))

    def _conversation(self, command: StartRollout, attempt: _Attempt) -> Conversation:
        engine = self._engines.get(command.replica)
        if engine is None:
            raise EngineError("no such replica", value=command.replica)
        return Conversation(
            command,
            engine,
            self._renderer,
            self._limits,
            self._environment.stop_strings,
            self._environment.system_prompt,
            self._gate(attempt),
        )

    def _finish(
        self, command: StartRollout, task: Task, chat: Conversation, outcome: object, lease: SandboxLease
    ) -> RolloutEnded:
        """Write the payload and return the event that tells of it."""
        if not isinstance(outcome, Outcome):
            raise EnvironmentFault("a rollout must return an Outcome", value=type(outcome).__name__)
        try:
            json.dumps(outcome.data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise EnvironmentFault(f"an Outcome must hold JSON values only: {error}") from error
        recorder = chat.recorder
        if recorder.num_sampled_tokens == 0:
            raise EnvironmentFault("a rollout must let the policy say something")
        payload = Payload(command.rollout, task.id, recorder.samples(), outcome.data, recorder.transcript)
        try:
            reference = self._payloads.append(payload)
        except OSError as error:
            raise PayloadError(f"a finished rollout could not be written: {error}") from error
        return RolloutEnded(
            rollout=command.rollout,
            attempt=command.attempt,
            payload=reference,
            spans=recorder.spans(),
            num_turns=chat.num_turns,
            num_tool_calls=lease.num_execs,
            num_prompt_tokens=recorder.num_prompt_tokens,
            num_tokens=recorder.num_sampled_tokens,
            truncated=chat.truncated,
        )

    async def _score(self, command: Score, task: Task, attempt: _Attempt) -> None:
        sandbox_id = f"{command.rollout}.{command.attempt}.v{command.tries}"
        lease = self._lease(command, attempt, sandbox_id, "verify")
        answer: Event
        try:
            answer = await self._scored(command, task, lease)
        except asyncio.CancelledError:
            if attempt.cancelled is None:
                raise
            answer = self._cancelled(command, attempt.cancelled)
        except Exception as error:  # the reward's code may raise anything
            answer = ScoreFailed(*_of(command), command.tries, score_cause(error), describe_exception(error))
            if attempt.cancelled is not None:
                answer = self._cancelled(command, attempt.cancelled)
        finally:
            await self._release(lease)
            self._forget(command, attempt)
        if not self._closing.is_set():
            self._emit(answer)

    async def _scored(self, command: Score, task: Task, lease: SandboxLease) -> Scored:
        began = stopwatch()
        timeout_s = self._settings.score_timeout_s
        outcome = Outcome(read_payload(self._payload_dir, command.payload).outcome)
        work = self._environment.score(task, outcome, lease)
        try:
            reward = checked(await self._supervise(work, lambda: timeout_s + lease.waited_s))
        except OverdueError:
            raise OverdueError("a rollout must be scored within reward.timeout_s", value=timeout_s) from None
        return Scored(
            rollout=command.rollout,
            attempt=command.attempt,
            tries=command.tries,
            reward=float(reward.score),
            reasons=reward.reasons,
            duration_s=stopwatch() - began - lease.waited_s,
            sandbox_start_s=lease.start_s,
            metrics={name: float(value) for name, value in reward.metrics.items()},
        )

    async def _supervise(
        self, work: Coroutine[Any, Any, T], allowed_s: Callable[[], float] | None = None
    ) -> T:
        try:
            return await supervise(work, allowed_s, self._settings.cancel_grace_s)
        except AbandonedError:
            self.num_abandoned += 1
            raise

    def _lease(
        self,
        command: StartRollout | Score,
        attempt: _Attempt,
        sandbox_id: str,
        purpose: Literal["rollout", "verify"],
    ) -> SandboxLease:
        emit = self._gate(attempt)
        lease = SandboxLease(sandbox_id, *_of(command), purpose, self._provider, self._run_id, emit)
        self._leases[sandbox_id] = lease
        return lease

    async def _release(self, lease: SandboxLease) -> None:
        await lease.release()
        if self._leases.get(lease.id) is lease:
            del self._leases[lease.id]

    def _gate(self, attempt: _Attempt) -> Callable[[Event], None]:
        """An emit that an abandoned coroutine cannot speak through any more."""

        def emit(event: Event) -> None:
            if not attempt.over or isinstance(event, SandboxReleased):
                self._emit(event)

        return emit

    def _forget(self, command: StartRollout | Score, attempt: _Attempt) -> None:
        attempt.over = True
        if self._attempts.get(_of(command)) is attempt:
            del self._attempts[_of(command)]

    def _cancelled(self, command: StartRollout | Score | Cancel, reason: str) -> RolloutFailed:
        return RolloutFailed(*_of(command), "scheduler", "cancelled", reason)


def _of(command: StartRollout | Score | Cancel) -> tuple[str, int]:
    return command.rollout, command.attempt
