"""A sandbox that is asked for at its first use, and brought back when it is lost.

Waits for GrantSandbox (the scheduler answers SandboxWanted when its quota allows, or cancels the attempt);
for another one after a SandboxRefused, which tells that the provider makes no further sandbox now. Its id is
chosen before anything is asked or created, so that nothing can leak unnamed. Ends by `release`, whoever calls
it: the host on ReleaseSandbox, or on the attempt's way out. Each ending that the scheduler granted a place
for is told exactly once.

With a record that is kept, every call and its result is recorded; one of an earlier life is answered from it,
without a sandbox. At the first call beyond it, and when the sandbox is found dead (`revive`), its state
is rebuilt in the place that was granted: from the newest snapshot, if there is one, and the recorded calls
after it, in their order. What they return then is not compared: a command that tells the time is no fault.

A failure of the infrastructure is remembered: an environment may catch it and go on, but what it then makes
of the rollout is no outcome, and no reward (`must_be_intact`). So is an end that somebody else asked for, the
scheduler at its deadline above all; the environment's own `terminate` is none. Whatever a provider raises at
an end breaks one sandbox, told as lost, and never the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headway.core.clock import stopwatch
from headway.core.errors import EnvironmentFault, SandboxError, SandboxRefusedError
from headway.core.events import (
    Event,
    SandboxLost,
    SandboxReady,
    SandboxRefused,
    SandboxReleased,
    SandboxWanted,
    ToolEnded,
)
from headway.core.protocols import ExecResult
from headway.environments.record import Call, Record
from headway.environments.usage import UseSoFar, prepared

if TYPE_CHECKING:
    from pathlib import Path

    from headway.core.protocols import (
        ConnectionHandler,
        ExecLimits,
        Polled,
        Sandbox,
        SandboxProvider,
        SandboxStats,
    )


class SandboxLease:
    """The lazy `Sandbox` that an environment gets."""

    def __init__(
        self,
        sandbox_id: str,
        rollout: str,
        attempt: int,
        purpose: Literal["rollout", "verify"],
        provider: SandboxProvider,
        run_id: str,
        emit: Callable[[Event], None],
        record: Record | None = None,
        image: str = "",
    ) -> None:
        self._id = sandbox_id
        self._rollout = rollout
        self._attempt = attempt
        self._purpose: Literal["rollout", "verify"] = purpose
        self._provider = provider
        self._labels = {"run": run_id, "rollout": rollout, "purpose": purpose}
        if image:
            self._labels["image"] = image  # what its container is made of
        self._emit = emit
        self.record = record or Record()
        self.store: Path | None = None  # where the record's snapshots are
        self._calling = 0  # calls in progress
        self._lock = asyncio.Lock()
        self._decided = asyncio.Event()  # granted or released
        self._inner: Sandbox | None = None
        self._wanted_at: float | None = None
        self._waited_s = 0.0
        self._starts_at: float | None = None  # while it starts
        self._state: Literal["unused", "wanted", "granted", "released"] = "unused"
        self.turn: Callable[[], int] = lambda: 0  # index of the turn that tool calls belong to
        self.answering_s: Callable[[], float] = lambda: 0.0  # that answers were awaited so far
        self.start_s = 0.0
        self.num_tool_calls = 0  # commands, and calls of tools outside
        self._num_uses = 0  # of the sandbox, of any kind
        self._use = UseSoFar()
        self._failure: SandboxError | None = None  # of the infrastructure
        self._owed: Event | None = None  # an ending to be told when what is starting is gone

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        return self._id

    @property
    def held(self) -> bool:
        """Whether it was granted a place that a release must still give back."""
        return self._state == "granted"

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for a grant so far."""
        now = 0.0 if self._wanted_at is None else stopwatch() - self._wanted_at
        return self._waited_s + now

    @property
    def outside_s(self) -> float:
        """Seconds spent waiting for a grant and starting so far, which count against no limit."""
        starting_s = 0.0 if self._starts_at is None else stopwatch() - self._starts_at
        return self.waited_s + self.start_s + starting_s

    def grant(self) -> None:
        """The sandbox may be created now."""
        if self._state == "wanted":
            self._state = "granted"
            self._decided.set()
        elif self._state == "released":
            self._emit(SandboxReleased(self._rollout, self._attempt, self._id))  # the grant crossed its end

    async def release(self, by_itself: bool = False) -> None:
        """End the sandbox and give its place back; idempotent.

        Args:
            by_itself: whether the environment asked for it; of anybody else it is a failure of what is then
                still to come of the rollout.
        """
        held = self.held
        if self._failure is None and not by_itself and self._state != "released":
            self._failure = SandboxError(
                "a sandbox was released before its rollout had ended"
                if self._starts_at is None
                else "a sandbox must start within deadlines.sandbox_s",
                value=self._id,
            )
        self._state = "released"
        self._decided.set()
        ending: Event = SandboxReleased(self._rollout, self._attempt, self._id)
        if self._inner is not None:
            began, inner, use = stopwatch(), self._inner, None
            try:
                try:
                    use = None if self._calling else await self._use.at_its_end(inner)
                finally:  # cancelled while it was asked, it must go all the same
                    await inner.terminate()
            except Exception as error:  # whatever it is, other sandboxes are none the worse for it
                ending = self._lost(f"not removed: {str(error) or type(error).__name__}", "end")
            else:
                spent_s = stopwatch() - began
                ending = SandboxReleased(self._rollout, self._attempt, self._id, spent_s, use)
            self._inner = None
        if held and self._starts_at is not None:
            self._owed = ending  # what is starting still takes its place
        elif held:
            self._emit(ending)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: ExecLimits | None = None,
        cwd: str = "",
    ) -> ExecResult:
        """Run a command; see `Sandbox`."""
        _must_have_words(argv)
        return await self._call(Call.exec(argv, stdin, env, limits, cwd), self._timed_exec)

    async def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        output_bytes: int = 65536,
    ) -> None:
        """Start a long-lived process; see `Sandbox`."""
        _must_have_words(argv)
        await self._call(Call.spawn(name, argv, stdin, env, cwd, output_bytes), Call.run)

    async def poll(self, name: str) -> Polled:
        """Say how a long-lived process is; see `Sandbox`."""
        return await self._call(Call("poll", {"name": name}), Call.run)

    async def kill(self, name: str) -> None:
        """End a long-lived process; see `Sandbox`."""
        await self._call(Call("kill", {"name": name}), Call.run)

    async def stats(self) -> SandboxStats:
        """Say what the sandbox holds; see `Sandbox`."""
        return await self._call(Call("stats", {}), Call.run)

    @contextlib.asynccontextmanager
    async def serve(
        self, port: int, handler: ConnectionHandler, *, max_connections: int = 64
    ) -> AsyncGenerator[int]:
        """Let programs connect to a handler of this process for the length of a block; see `Sandbox`.

        Raises EnvironmentFault where a record is kept: what was said there is in no record, so a rerun could
        not be told it.
        """
        if self.record.kept:
            raise EnvironmentFault(
                "what a sandbox is served cannot be repeated from a record",
                value=port,
                remedy='An environment that uses it must declare resume = "restart"',
            )
        sandbox = await self._ready()
        async with contextlib.AsyncExitStack() as stack:
            try:
                with _ours():
                    block = sandbox.serve(port, handler, max_connections=max_connections)
                    port = await stack.enter_async_context(block)
            except SandboxError as error:
                if self._state == "granted" and not await self._alive():
                    self._failure = error
                raise
            yield port

    async def pause(self) -> None:
        """Stop what runs, if anything was created; see `Sandbox`. Not recorded: it changes no answer."""
        if self._inner is not None:
            await self._inner.pause()

    async def resume(self) -> None:
        """Go on; a sandbox that was lost is rebuilt from its record, if one is kept; see `Sandbox`.

        Raises SandboxError when it is lost for good.
        """
        await self.revive()
        if self._inner is not None:
            await self._inner.resume()

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox`."""
        await self._call(Call.write(path, data), Call.run)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a file; see `Sandbox`."""
        return await self._call(Call.read(path, max_bytes), Call.run)

    async def upload(self, path: str, archive: bytes) -> None:
        """Put what an archive holds into a folder; see `Sandbox`."""
        await self._call(Call.upload(path, archive), Call.run)

    async def download(self, path: str, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Return a file or folder as an archive; see `Sandbox`."""
        return await self._call(Call.download(path, max_bytes, max_files), Call.run)

    async def _call(self, call: Call, run: Callable[[Call, Sandbox], Awaitable[Any]]) -> Any:
        """Answer from the record, or do it and record it."""
        self._num_uses += 1
        known = self.record.called(call)
        if known is not None:
            self.num_tool_calls += known.op == "exec"
            if known.failed and known.op == "exec":
                self._failure = SandboxError(known.failed)
            return known.answer()
        sandbox = await self._ready()
        self._calling += 1
        try:
            with _ours():
                value = await run(call, sandbox)
        except SandboxError as error:
            if self._state == "granted" and (call.op == "exec" or not await self._alive()):
                self._failure = error
            if self.record.kept:
                call.failed = error.rule
                self.record.calls.append(call)
            raise
        finally:
            self._calling -= 1
        if self._state == "released":
            self.must_be_intact()  # what was cut off by an end that nobody here asked for is no answer
        if self.record.kept:
            call.answered(value)
            self.record.calls.append(call)
        return value

    async def _timed_exec(self, call: Call, sandbox: Sandbox) -> ExecResult:
        began = stopwatch() - self.answering_s()
        cause, ran_s = "infra", None
        used: tuple[float | None, int | None] = (None, None)
        try:
            result: ExecResult = await call.run(sandbox)
            cause, ran_s, used = result.cause, result.wall_s, self._use.add(result)
        except asyncio.CancelledError:
            cause = "killed"  # nothing failed
            raise
        finally:
            number = self.num_tool_calls
            self.num_tool_calls += 1
            if self._purpose == "rollout":
                # A program that asks the policy waits meanwhile: that time is the answers', not the tool's.
                spent_s = max(0.0, stopwatch() - self.answering_s() - began)
                beside_s = None if ran_s is None else max(0.0, spent_s - ran_s)
                of = (self._rollout, self._attempt, self.turn(), number)
                self._emit(ToolEnded(*of, spent_s, cause, beside_s, *used))
        if result.cause == "infra":
            raise SandboxError(f"the sandbox failed: {result.stderr.strip()[:200] or 'no reason given'}")
        return result

    @contextlib.contextmanager
    def outside_call(self) -> Generator[None]:
        """Tell of the call of a tool outside the sandbox; of one that uses the sandbox its commands tell."""
        began, num_uses, cause = stopwatch() - self.answering_s(), self._num_uses, "error"
        try:
            yield
            cause = "exit"
        except asyncio.CancelledError:
            cause = "killed"
            raise
        finally:
            if self._num_uses == num_uses:
                number = self.num_tool_calls
                self.num_tool_calls += 1
                if not self.record.telling:
                    spent_s = max(0.0, stopwatch() - self.answering_s() - began)
                    of = (self._rollout, self._attempt, self.turn(), number)
                    self._emit(ToolEnded(*of, spent_s, cause, where="host"))

    def must_be_intact(self) -> None:
        """Raise the SandboxError that the infrastructure caused, whoever caught it."""
        if self._failure is not None:
            raise self._failure

    async def terminate(self) -> None:
        """End the sandbox; see `Sandbox`."""
        await self.release(by_itself=True)

    async def revive(self) -> None:
        """Make sure that what was done in the sandbox is there before the policy goes on.

        Raises SandboxError when it is lost and no record is kept to rebuild it from.
        """
        async with self._lock:
            if self._inner is None or self._state == "released" or await self._alive():
                return
            inner, self._inner = self._inner, None
            with contextlib.suppress(SandboxError), _ours():  # of what is left of it
                await inner.terminate()
            if self.record.kept:
                began = stopwatch()
                try:
                    with self._starting():
                        sandbox, _ = await self._built()
                        await self._still_wanted(sandbox)
                except SandboxError as error:
                    self._failure = error
                    raise
                self._inner, spent_s = sandbox, stopwatch() - began
                self.start_s += spent_s
                self._emit(SandboxReady(self._rollout, self._attempt, self._id, spent_s, "rebuilt"))
                return
            self._state = "released"
            cause = "what was done in the sandbox is gone"
            self._emit(self._lost(cause, "gone"))
            self._failure = SandboxError(
                f"the sandbox was lost: {cause}",
                value=self._id,
                remedy='An environment that declares resume = "replay" or "snapshot" gets it rebuilt',
            )
            raise self._failure

    async def snapshot(self, labels: Mapping[str, str]) -> bool:
        """Store the sandbox's state and let the record name it; return whether that was done.

        Not while a call is in progress, which would be in it by half. A state that is lost is not stored.
        """
        if self._inner is None or self._calling or self.store is None or not self._provider.snapshots:
            return False
        num_calls = len(self.record.calls)
        if not await self._alive():
            return False
        with _ours():
            digest = await self._provider.snapshot(self._id, self.store, {**self._labels, **labels})
        self.record.snapshot, self.record.num_calls_in_snapshot = digest, num_calls
        return True

    async def _ready(self) -> Sandbox:
        await self.revive()
        async with self._lock:
            self._check()
            if self._inner is None:
                await self._create()
            assert self._inner is not None
            return self._inner

    async def _alive(self) -> bool:
        """Say whether what was done in it is there; a provider that cannot be asked has lost it."""
        try:
            with _ours():
                return await self._provider.alive(self._id)
        except SandboxError:
            return False

    async def _built(self) -> tuple[Sandbox, Literal["new", "warm", "snapshot"]]:
        """Create the sandbox and bring it to the state that the record tells of; say what it came from."""
        with _ours():
            return await self._made()

    async def _made(self) -> tuple[Sandbox, Literal["new", "warm", "snapshot"]]:
        record, sandbox = self.record, None
        first = record.num_calls_in_snapshot
        origin: Literal["new", "warm", "snapshot"] = "snapshot"
        spawned = any(call.op == "spawn" for call in record.calls[:first])  # no snapshot holds processes
        if record.snapshot and self.store is not None and self._provider.snapshots and not spawned:
            # Without its snapshot (a later one took its place) the whole record gives the same state.
            with contextlib.suppress(SandboxError):
                sandbox = await self._provider.restore(self._id, self._labels, self.store, record.snapshot)
        if sandbox is None:
            sandbox, first = await self._provider.create(self._id, self._labels), 0
            origin = "warm" if getattr(sandbox, "warm", False) else "new"
        try:
            await prepared(sandbox)
            for call in record.calls[first:]:
                try:
                    value = await call.run(sandbox)
                except SandboxError:
                    if not call.failed:
                        raise
                else:
                    if isinstance(value, ExecResult) and value.cause == "infra" and not call.failed:
                        raise SandboxError(f"a lost sandbox could not be rebuilt: {value.stderr[:200]}")
        except BaseException:
            await sandbox.terminate()
            raise
        return sandbox, origin

    async def _create(self) -> None:
        if self._state == "unused":
            self._state = "wanted"
            self._emit(SandboxWanted(self._rollout, self._attempt, self._id, self._purpose))
        while not await self._started():
            pass

    async def _started(self) -> bool:
        """Wait for a grant and start the sandbox; False when the provider refuses it, which tells itself."""
        self._wanted_at = stopwatch()
        try:
            await self._decided.wait()
        finally:
            self._waited_s, self._wanted_at = self.waited_s, None
        self._check()
        began = stopwatch()
        try:
            with self._starting():
                sandbox, origin = await self._built()
                await self._still_wanted(sandbox)
        except SandboxRefusedError as error:
            self._waited_s += stopwatch() - began  # it was no start
            self._check()
            self._state = "wanted"
            self._decided.clear()
            said = (error.rule, error.retry_after_s)
            self._emit(SandboxRefused(self._rollout, self._attempt, self._id, *said))
            return False
        except SandboxError as error:
            self._check()
            self._state = "released"
            kind = "start_timeout" if "start_timeout_s" in error.rule else "start"
            self._emit(self._lost(error.rule, kind))
            self._failure = error
            raise
        self._inner, self.start_s = sandbox, stopwatch() - began
        self._emit(SandboxReady(self._rollout, self._attempt, self._id, self.start_s, origin))
        return True

    @contextlib.contextmanager
    def _starting(self) -> Generator[None]:
        """Let it count as starting; an ending that somebody asked for meanwhile is told when that is over."""
        self._starts_at = stopwatch()
        try:
            yield
        finally:
            self._starts_at = None
            if self._owed is not None:
                self._emit(self._owed)
                self._owed = None

    def _lost(self, cause: str, kind: str) -> SandboxLost:
        return SandboxLost(self._rollout, self._attempt, self._id, cause, kind)

    async def _still_wanted(self, sandbox: Sandbox) -> None:
        """End a sandbox that was released by somebody who could not see it yet."""
        if self._state == "released":
            try:
                with _ours():
                    await sandbox.terminate()
            except SandboxError as error:
                self._owed = self._owed and self._lost(f"not removed: {error}", "end")
        self._check()

    def _check(self) -> None:
        if self._state == "released":
            self.must_be_intact()
            raise SandboxError("a released sandbox cannot be used", value=self._id)


@contextlib.contextmanager
def _ours() -> Generator[None]:
    """Let what the system refuses a provider (files, processes, a connection) be its own failure."""
    try:
        yield
    except OSError as error:
        raise SandboxError(f"the sandboxes' provider failed: {error}") from error


def _must_have_words(argv: Sequence[str]) -> None:
    """Raise EnvironmentFault for a command without any; what a model may put into one is the provider's."""
    if not argv:
        raise EnvironmentFault("a command must have a word")
