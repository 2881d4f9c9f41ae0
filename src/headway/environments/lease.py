"""A sandbox that is asked for at its first use.

Waits for GrantSandbox (the scheduler answers SandboxWanted when its quota allows, or cancels the attempt);
its id is chosen before anything is asked or created, so that nothing can leak unnamed. Ends by `release`,
whoever calls it: the host on ReleaseSandbox, or on the attempt's way out. Each ending that the scheduler
granted a place for is told exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.events import Event, SandboxLost, SandboxReady, SandboxReleased, SandboxWanted, ToolEnded

if TYPE_CHECKING:
    from headway.core.protocols import ExecLimits, ExecResult, Sandbox, SandboxProvider


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
    ) -> None:
        self._id = sandbox_id
        self._rollout = rollout
        self._attempt = attempt
        self._purpose: Literal["rollout", "verify"] = purpose
        self._provider = provider
        self._labels = {"run": run_id, "rollout": rollout}
        self._emit = emit
        self._lock = asyncio.Lock()
        self._decided = asyncio.Event()  # granted or released
        self._inner: Sandbox | None = None
        self._wanted_at: float | None = None
        self._waited_s = 0.0
        self._state: Literal["unused", "wanted", "granted", "released"] = "unused"
        self.turn: Callable[[], int] = lambda: 0  # index of the turn that tool calls belong to
        self.start_s = 0.0
        self.num_execs = 0

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

    def grant(self) -> None:
        """The sandbox may be created now."""
        if self._state == "wanted":
            self._state = "granted"
            self._decided.set()
        elif self._state == "released":
            self._emit(SandboxReleased(self._rollout, self._attempt, self._id))  # the grant crossed its end

    async def release(self) -> None:
        """End the sandbox and give its place back; idempotent."""
        held = self.held
        self._state = "released"
        self._decided.set()
        ending: Event = SandboxReleased(self._rollout, self._attempt, self._id)
        if self._inner is not None:
            try:
                await self._inner.terminate()
            except (SandboxError, OSError) as error:
                ending = SandboxLost(self._rollout, self._attempt, self._id, f"not removed: {error}")
            self._inner = None
        if held:
            self._emit(ending)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: ExecLimits | None = None,
    ) -> ExecResult:
        """Run a command; see `Sandbox`."""
        sandbox = await self._ready()
        began = stopwatch()
        cause = "infra"
        try:
            result = await sandbox.exec(argv, stdin=stdin, env=env, limits=limits)
            cause = result.cause
        finally:
            call = self.num_execs
            self.num_execs += 1
            if self._purpose == "rollout":
                spent_s = stopwatch() - began
                self._emit(ToolEnded(self._rollout, self._attempt, self.turn(), call, spent_s, cause))
        if result.cause == "infra":
            raise SandboxError(f"the sandbox failed: {result.stderr.strip()[:200] or 'no reason given'}")
        return result

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox`."""
        await (await self._ready()).write(path, data)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a file; see `Sandbox`."""
        return await (await self._ready()).read(path, max_bytes)

    async def terminate(self) -> None:
        """End the sandbox; see `Sandbox`."""
        await self.release()

    async def _ready(self) -> Sandbox:
        async with self._lock:
            self._check()
            if self._inner is None:
                await self._create()
            assert self._inner is not None
            return self._inner

    async def _create(self) -> None:
        if self._state == "unused":
            self._state = "wanted"
            self._emit(SandboxWanted(self._rollout, self._attempt, self._id, self._purpose))
        self._wanted_at = stopwatch()
        try:
            await self._decided.wait()
        finally:
            self._waited_s, self._wanted_at = self.waited_s, None
        self._check()
        began = stopwatch()
        try:
            sandbox = await self._provider.create(self._id, self._labels)
        except SandboxError as error:
            self._state = "released"
            self._emit(SandboxLost(self._rollout, self._attempt, self._id, error.rule))
            raise
        if self._state == "released":  # meanwhile, by somebody who could not see it yet
            await sandbox.terminate()
        self._check()
        self._inner = sandbox
        self.start_s = stopwatch() - began
        self._emit(SandboxReady(self._rollout, self._attempt, self._id, self.start_s))

    def _check(self) -> None:
        if self._state == "released":
            raise SandboxError("a released sandbox cannot be used", value=self._id)
