"""The rollout host: runs environments' coroutines and scores what they leave, one process's share of them.

Consumes StartRollout, Cancel, Park, Resume, GrantSandbox, ReleaseSandbox and Score as method calls; answers
each by an event through `emit`, but for a Park or Resume that comes too late. `run` owns one TaskGroup and
waits until `close`. A rollout waits for its engine, its sandbox, and its Resume while it is parked; each of
those waits ends by an answer or by Cancel, which the scheduler sends at its own deadline. A score waits at
most `timeout_s`, grants for its sandbox and the rate limit of a judge apart.

Invariants: the payload is on disk before RolloutEnded; an attempt ends by exactly one RolloutEnded or
RolloutFailed of its own; an attempt that fails gives its sandbox back before it says so; a coroutine that
swallows its cancellation is reported and abandoned after the grace, and holds nobody up.

Not safe against an environment that blocks the event loop (time.sleep, endless loops): only the end of the
process helps there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headway.core.clock import stopwatch
from headway.core.events import Event, RolloutEnded, RolloutFailed, SandboxLost, SandboxReleased, Scored
from headway.core.hooks import load_function
from headway.core.payload import PayloadWriter, read_payload
from headway.core.protocols import EndpointServer, Engine, Environment, HasImages, Outcome, SandboxProvider
from headway.environments.conversation import Conversation
from headway.environments.faults import describe_exception, owner_and_cause
from headway.environments.lease import SandboxLease
from headway.environments.shelf import Shelf
from headway.environments.steps import finish_rollout, score_failed, scored
from headway.environments.supervised import AbandonedError, OverdueError, supervise
from headway.environments.tasks import source_of
from headway.environments.watch import ValueHook, Watch
from headway.rewards.case import Case
from headway.rewards.check import checked
from headway.rewards.faults import JudgeAwayError, JudgeError
from headway.rewards.waiting import Waiting

if TYPE_CHECKING:
    from headway.core.commands import Cancel, GrantSandbox, Park, ReleaseSandbox, Resume, Score, StartRollout
    from headway.core.records import Reward, Task
    from headway.environments.generation import GenerationLimits
    from headway.renderers.chat import Renderer
    from headway.rewards.stage import RewardStage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What the host needs of `[environment]` and `[reward]`."""

    score_timeout_s: float = 30.0
    cancel_grace_s: float = 2.0
    score_max_wait_s: float = 120.0  # of a score for the rate limit of a judge, beside its timeout
    watch_tokens: int = 0  # tokens of a rollout that VerdictGiven tells of, 0 for off
    watch_repetition: float = 0.0  # share of repeated 4-grams likewise, 0 for off
    repetition_window: int = 64  # newest tokens of an answer that the share is of
    value_hook: str = ""  # function of a ValueRecord, asked at each turn's end
    strict_reasoning: bool = False  # an answer that comes back without its reasoning is another one


@dataclass(slots=True)
class _Attempt:
    """One running attempt, or the scoring of one."""

    work: asyncio.Task[None] | None = None
    chat: Conversation | None = None  # while it is a rollout
    broken: Exception | None = None  # what parking it raised
    cancelled: str | None = None  # the scheduler's reason
    settled: bool = False  # how it ends is decided; a Cancel comes too late
    over: bool = False  # its ending was told


class RolloutHost:
    """Runs rollouts and scores of one environment, or of several sources, against one or more engines."""

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
        sources: Mapping[str, Environment] | None = None,
        server: EndpointServer | None = None,
        stage: RewardStage | None = None,
    ) -> None:
        self._environments = {"": environment, **(sources or {})}  # by source, as task ids name it
        self._engines = engines
        self._renderer = renderer
        self._provider = provider
        self._payloads = payloads
        self._payload_dir = payload_dir
        self._emit = emit
        self._limits = limits
        self._run_id = run_id
        self._settings = settings or HostSettings()
        self._server = server  # serves rollouts to programs
        self._stage = stage  # what the config adds to the environment's score
        hook = self._settings.value_hook
        self._value_hook: ValueHook | None = load_function(hook, ["record"]) if hook else None
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
        """Score a finished rollout; answered by Scored or ScoreFailed.

        An earlier try that is still there was given up by the scheduler: it ends and says nothing more.
        """
        earlier = self._attempts.get(_of(command))
        if earlier is not None and earlier.work is not None and not earlier.settled:
            earlier.work.cancel()
        attempt = self._attempts[_of(command)] = _Attempt()
        attempt.work = self._spawn(self._score(command, task, attempt))

    def cancel(self, command: Cancel) -> None:
        """End an attempt; answered by RolloutFailed with owner scheduler, or by an ending that crosses."""
        attempt = self._attempts.get((command.rollout, command.attempt))
        if attempt is None or attempt.work is None or attempt.work.done():
            self._emit(self._cancelled(command, "nothing of this attempt runs here"))
        elif attempt.cancelled is None and not attempt.settled:
            attempt.cancelled = command.reason
            attempt.work.cancel()

    def park(self, command: Park) -> None:
        """Stop a rollout at its next token; answered by RolloutParked, or by its end, which settles it."""
        attempt = self._attempts.get((command.rollout, command.attempt))
        chat = None if attempt is None or attempt.settled else attempt.chat
        if attempt is not None and chat is not None and chat.may_park():
            self._spawn(self._park(attempt, chat))

    def resume(self, command: Resume) -> None:
        """Let a parked rollout go on; answered by RolloutResumed. Nothing else is changed by it."""
        attempt = self._attempts.get((command.rollout, command.attempt))
        if attempt is not None and attempt.chat is not None and not attempt.settled:
            attempt.chat.resume(command.replica)

    async def _park(self, attempt: _Attempt, chat: Conversation) -> None:
        try:
            await chat.park()
        except Exception as error:  # writing what it has, say; the rollout fails of it
            if attempt.work is not None and not attempt.settled:
                attempt.broken = error
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
        if self._group is None or self._closing.is_set():
            work.close()
            raise RuntimeError("commands may arrive only while RolloutHost.run serves")
        return self._group.create_task(work)

    async def _rollout(self, command: StartRollout, task: Task, attempt: _Attempt) -> None:
        lease = self._lease(command, task, attempt, f"{command.rollout}.{command.attempt}", "rollout")
        chat: Conversation | None = None
        ended: RolloutEnded | RolloutFailed | None = None
        environment = self._environment(command)
        kept = environment.resume
        shelf = Shelf(command, task, self._payload_dir, self._payloads, kept, self._provider)
        try:
            chat = attempt.chat = self._conversation(command, task, attempt)
            shelf.connect(chat, lease)
            outcome = await self._supervise(environment.rollout(task, chat, lease))
            chat.record.must_be_told()
            lease.must_be_intact()
            ended = finish_rollout(command, task, chat, outcome, lease, self._payloads)
        except asyncio.CancelledError:
            if attempt.broken is not None:
                words = describe_exception(attempt.broken)
                ended = RolloutFailed(*_of(command), *owner_and_cause(attempt.broken), words)
            elif attempt.cancelled is not None:
                ended = self._cancelled(command, attempt.cancelled, chat)
            else:  # the host closes
                raise
        except Exception as error:  # the environment's code may raise anything
            diverged = None if chat is None else chat.record.diverged
            cause = diverged or error  # whatever the environment made of a divergence
            words = describe_exception(cause)
            ended = RolloutFailed(*_of(command), *owner_and_cause(cause), words)
            if attempt.cancelled is not None:
                ended = self._cancelled(command, f"{attempt.cancelled}; then {words}", chat)
        finally:
            attempt.settled = True
            if not isinstance(ended, RolloutEnded) or not lease.held:
                await self._release(lease)
            self._tell(command, attempt, ended)
            if chat is not None:
                await chat.close()
            if not self._closing.is_set():  # a closing host may leave parked rollouts to another life
                await shelf.clear()

    def watch(self, tokens: int) -> None:
        """Tell of rollouts that sample so many tokens from now on, those that run included; 0 for none."""
        self._settings = replace(self._settings, watch_tokens=tokens)
        for attempt in self._attempts.values():
            if attempt.chat is not None:
                attempt.chat.watch_tokens(tokens)

    def _environment(self, command: StartRollout | Score) -> Environment:
        return self._environments[source_of(command.task_id)]

    def _conversation(self, command: StartRollout, task: Task, attempt: _Attempt) -> Conversation:
        settings = self._settings
        watch = Watch(command, task)
        if command.purpose == "train":
            watch.tokens, watch.value_hook = settings.watch_tokens, self._value_hook
            watch.repetition, watch.window = settings.watch_repetition, settings.repetition_window
        environment = self._environment(command)
        return Conversation(
            command,
            self._engines,
            self._renderer,
            self._limits,
            environment.stop_strings,
            environment.system_prompt,
            watch,
            self._gate(attempt),
            self._server,
            strict_reasoning=settings.strict_reasoning,
        )

    async def _score(self, command: Score, task: Task, attempt: _Attempt) -> None:
        sandbox_id = f"{command.rollout}.{command.attempt}.v{command.tries}"
        lease = self._lease(command, task, attempt, sandbox_id, "verify")
        answer: Event | None = None
        try:
            answer = await self._scored(command, task, lease)
        except asyncio.CancelledError:
            if attempt.cancelled is None:
                raise
            answer = self._cancelled(command, attempt.cancelled)
        except Exception as error:  # the reward's code may raise anything
            answer = score_failed(command, error)
            if attempt.cancelled is not None:
                answer = self._cancelled(command, attempt.cancelled)
        finally:
            attempt.settled = True
            await self._release(lease)
            self._tell(command, attempt, answer)

    async def _scored(self, command: Score, task: Task, lease: SandboxLease) -> Scored:
        began, waiting = stopwatch(), Waiting()
        timeout_s, max_wait_s = self._settings.score_timeout_s, self._settings.score_max_wait_s
        payload = read_payload(self._payload_dir, command.payload)
        num_turns = sum(len(sample.turns) for sample in payload.samples)
        case = Case(task, Outcome(payload.outcome, payload.transcript), lease)
        work = self._rewarded(self._environment(command), case, waiting)

        def allowed_s() -> float:
            return timeout_s + lease.outside_s + min(waiting.outside_s, max_wait_s)

        try:
            reward = checked(await self._supervise(work, allowed_s), num_turns)
        except OverdueError:
            rule = "a rollout must be scored within reward.timeout_s"
            if waiting.busy_with:
                raise JudgeAwayError(f"{rule}; it waited for {waiting.busy_with}", value=timeout_s) from None
            if waiting.outside_s > max_wait_s:
                rule = "a rollout may wait for a judge's rate limit for reward.max_wait_s"
                raise JudgeError(rule, value=max_wait_s) from None
            raise OverdueError(rule, value=timeout_s) from None
        lease.must_be_intact()
        spent_s = stopwatch() - began - lease.waited_s - waiting.outside_s
        return scored(command, reward, max(0.0, spent_s), lease.start_s, judged=waiting.was_answered)

    async def _rewarded(self, environment: Environment, case: Case, waiting: Waiting) -> Reward:
        with waiting.here():
            reward = await environment.score(case.task, case.outcome, case.sandbox)
            return reward if self._stage is None else await self._stage.complete(case, checked(reward))

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
        task: Task,
        attempt: _Attempt,
        sandbox_id: str,
        purpose: Literal["rollout", "verify"],
    ) -> SandboxLease:
        emit = self._gate(attempt)
        environment = self._environment(command)
        image = environment.image(task) if isinstance(environment, HasImages) else ""
        lease = SandboxLease(
            sandbox_id, *_of(command), purpose, self._provider, self._run_id, emit, image=image
        )
        self._leases[sandbox_id] = lease
        return lease

    async def _release(self, lease: SandboxLease) -> None:
        await lease.release()
        if self._leases.get(lease.id) is lease:
            del self._leases[lease.id]

    def _gate(self, attempt: _Attempt) -> Callable[[Event], None]:
        """An emit that an abandoned coroutine cannot speak through any more."""

        def emit(event: Event) -> None:
            if not attempt.over or isinstance(event, (SandboxReleased, SandboxLost)):
                self._emit(event)

        return emit

    def _tell(self, command: StartRollout | Score, attempt: _Attempt, ending: Event | None) -> None:
        """Emit an attempt's ending, unless the host closes, and forget the attempt."""
        attempt.over = True
        if self._attempts.get(_of(command)) is attempt:
            del self._attempts[_of(command)]
        if ending is not None and not self._closing.is_set():
            self._emit(ending)

    def _cancelled(
        self, command: StartRollout | Score | Cancel, reason: str, chat: Conversation | None = None
    ) -> RolloutFailed:
        num_tokens = 0 if chat is None else chat.num_tokens
        return RolloutFailed(*_of(command), "scheduler", "cancelled", reason, num_tokens)


def _of(command: StartRollout | Score | Cancel) -> tuple[str, int]:
    return command.rollout, command.attempt
