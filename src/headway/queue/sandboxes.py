"""Sandbox grants: a quota of live sandboxes, first come first served, with places kept for verifiers.

Rollouts may not take the last `verify_sandboxes` places, so rollouts that wait for their verifiers cannot
lock one another out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import GrantSandbox, ReleaseSandbox
from headway.core.notes import Ignored
from headway.queue.state import RolloutState, SandboxState

if TYPE_CHECKING:
    from headway.core.events import SandboxLost, SandboxReady, SandboxReleased, SandboxWanted
    from headway.queue.context import Context


def wanted(ctx: Context, rollout: RolloutState, event: SandboxWanted) -> None:
    """A rollout or verifier reached its first use of a sandbox."""
    if event.sandbox in rollout.sandboxes:
        ctx.note(Ignored("SandboxWanted", event.sandbox))
        return
    rollout.sandboxes.append(event.sandbox)
    sandbox = SandboxState(event.rollout, event.attempt, event.purpose)
    ctx.state.sandboxes[event.sandbox] = sandbox
    ctx.index.add_sandbox(event.sandbox, sandbox)


def ready(ctx: Context, event: SandboxReady) -> None:
    """A granted sandbox runs."""
    sandbox = ctx.state.sandboxes.get(event.sandbox)
    ctx.met(f"sandbox:{event.sandbox}")
    if sandbox is None:  # its rollout is over: it must go
        ctx.ask(ReleaseSandbox(event.rollout, event.attempt, event.sandbox))
        ctx.note(Ignored("SandboxReady", event.sandbox))
    elif sandbox.stage == "granted":
        sandbox.stage = "ready"
    elif sandbox.stage == "releasing":
        ctx.expect(f"sandbox:{event.sandbox}", ctx.settings.deadlines.sandbox_s)


def gone(ctx: Context, event: SandboxReleased | SandboxLost) -> None:
    """A sandbox ended."""
    ctx.met(f"sandbox:{event.sandbox}")
    if _forget(ctx, event.sandbox) is None:
        ctx.note(Ignored(type(event).__name__, event.sandbox))


def release_all(ctx: Context, rollout: RolloutState) -> None:
    """Let go of everything that this rollout holds or waits for."""
    for name in rollout.sandboxes:
        sandbox = ctx.state.sandboxes.get(name)
        if sandbox is None:
            continue
        if sandbox.stage == "wanted":
            _forget(ctx, name)
        elif sandbox.stage != "releasing":
            sandbox.stage = "releasing"
            ctx.ask(ReleaseSandbox(sandbox.rollout, sandbox.attempt, name))
            ctx.expect(f"sandbox:{name}", ctx.settings.deadlines.sandbox_s)


def grant(ctx: Context) -> None:
    """Grant what the quota allows, verifiers first."""
    index = ctx.index
    for purpose, reserve in (("verify", 0), ("rollout", ctx.settings.verify_sandboxes)):
        line = index.wanted[purpose]
        while line and index.num_live_sandboxes < ctx.settings.max_sandboxes - reserve:
            if not _may_start(ctx):
                return
            name = next(iter(line))
            sandbox = line.pop(name)
            sandbox.stage = "granted"
            index.num_live_sandboxes += 1
            ctx.ask(GrantSandbox(sandbox.rollout, sandbox.attempt, name))
            ctx.expect(f"sandbox:{name}", ctx.settings.deadlines.sandbox_s)


def _may_start(ctx: Context) -> bool:
    """Whether one more may start now at the set rate, which is kept over any second; else wake up then."""
    rate = ctx.settings.max_sandbox_starts_per_s
    if not rate:
        return True
    state = ctx.state
    burst_s = max(0.0, 1.0 - 1.0 / rate)
    if state.starts_due_s - burst_s > ctx.now:
        ctx.index.expect("starts", state.starts_due_s - burst_s)
        return False
    state.starts_due_s = max(state.starts_due_s, ctx.now) + 1.0 / rate
    return True


def deadline(ctx: Context, name: str) -> None:
    """A sandbox neither started nor ended in time: its place is given up.

    It may run all the same, and the message be lost: it must go.
    """
    sandbox = _forget(ctx, name)
    if sandbox is not None:
        if sandbox.stage == "granted":
            ctx.ask(ReleaseSandbox(sandbox.rollout, sandbox.attempt, name))
        verb = "end" if sandbox.stage == "releasing" else "start"
        ctx.warn("sandbox_timeout", f"sandbox {name} of rollout {sandbox.rollout} did not {verb} in time")


def _forget(ctx: Context, name: str) -> SandboxState | None:
    sandbox = ctx.state.sandboxes.pop(name, None)
    if sandbox is not None:
        ctx.index.remove_sandbox(name, sandbox)
    return sandbox
