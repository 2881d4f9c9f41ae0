"""Sandbox grants: a quota of live sandboxes, first come first served, with places kept for verifiers.

Rollouts may not take the last `verify_sandboxes` places, so rollouts that wait for their verifiers cannot
lock one another out. Starting is a station of its own: `max_starting_sandboxes` at once, so many a second.

A provider that refuses (SandboxRefused) is asked again by this rule and by nobody else: after a pause that
doubles with every refusal, by one grant, and by twice as many after each that succeeds. The pause begins anew
when more are live than beside the last refused one; in it only places that became free are filled again, and
none where the provider said how long to wait. Meanwhile the sandbox keeps its place in the line, and no new
group is let in behind those that wait. The time that a rollout or its verifier waits for a sandbox moves
their deadlines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import GrantSandbox, ReleaseSandbox
from headway.core.notes import Ignored
from headway.queue.state import RolloutState, SandboxState

if TYPE_CHECKING:
    from headway.core.events import (
        SandboxLost,
        SandboxReady,
        SandboxRefused,
        SandboxReleased,
        SandboxWanted,
    )
    from headway.queue.context import Context

_FIRST_PAUSE_S = 1.0  # after a refusal
_LONGEST_PAUSE_S = 30.0
_LEAST_EXCUSE_S = 1.0


def wanted(ctx: Context, rollout: RolloutState, event: SandboxWanted) -> None:
    """A rollout or verifier reached its first use of a sandbox."""
    if event.sandbox in rollout.sandboxes:
        ctx.note(Ignored("SandboxWanted", event.sandbox))
        return
    rollout.sandboxes.append(event.sandbox)
    sandbox = SandboxState(event.rollout, event.attempt, event.purpose, since_s=ctx.now)
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
        ctx.index.started(sandbox, "ready")
        _succeeded(ctx)
        _excuse(ctx, sandbox)
    elif sandbox.stage == "releasing":
        ctx.expect(f"sandbox:{event.sandbox}", ctx.settings.deadlines.sandbox_s)


def refused(ctx: Context, event: SandboxRefused) -> None:
    """The provider makes no further sandbox now: the wish waits on, and the next grant for a while."""
    sandbox = ctx.state.sandboxes.get(event.sandbox)
    ctx.met(f"sandbox:{event.sandbox}")
    if sandbox is None or sandbox.stage not in ("granted", "releasing"):
        ctx.note(Ignored("SandboxRefused", event.sandbox))
        return
    if sandbox.stage == "releasing":
        _forget(ctx, event.sandbox)
    else:
        ctx.index.ungrant(ctx.state, event.sandbox, sandbox)
    refusals = ctx.state.refusals
    if ctx.now >= refusals.until_s:  # else it was asked before the refusal that began this pause
        if not refusals.num_in_row:
            ctx.warn("sandbox_refused", f"the provider of sandboxes refuses: {event.reason}")
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**refusals.num_in_row)
        refusals.num_in_row += 1
        refusals.until_s = ctx.now + max(pause_s, event.retry_after_s)
    refusals.reason, refusals.most_starting = event.reason, 1
    refusals.level, refusals.rests = ctx.index.num_live_sandboxes, event.retry_after_s > 0


def refusing(ctx: Context) -> bool:
    """Say whether rollouts wait for a provider that refuses."""
    return bool(ctx.state.refusals.reason) and bool(ctx.index.wanted["rollout"])


def _succeeded(ctx: Context) -> None:
    """A sandbox started: where it took no place that had become free, there is room again."""
    refusals = ctx.state.refusals
    if refusals.reason and ctx.index.num_live_sandboxes > refusals.level:
        refusals.reason, refusals.num_in_row, refusals.until_s, refusals.level = "", 0, 0.0, 0
    if refusals.most_starting:
        refusals.most_starting *= 2
        if refusals.most_starting >= (ctx.settings.max_starting_sandboxes or ctx.settings.max_sandboxes):
            refusals.most_starting = 0


def wait_on(ctx: Context, rollout: RolloutState) -> bool:
    """Move the deadline of a score that waits for its sandbox; False when it does not, or for too long.

    Too long is what a rollout may take (`environment.rollout_timeout_s`): a provider that is gone for good
    must not hold up a run for ever.
    """
    for name in rollout.sandboxes:
        sandbox = ctx.state.sandboxes.get(name)
        if sandbox is None or sandbox.purpose != "verify" or sandbox.stage not in ("wanted", "granted"):
            continue
        if ctx.now - sandbox.since_s < ctx.settings.rollout_timeout_s:
            ctx.expect(f"score:{rollout.id}", _LEAST_EXCUSE_S)
            _excuse(ctx, sandbox)
            return True
    return False


def _excuse(ctx: Context, sandbox: SandboxState) -> None:
    """Let the time that a rollout or its verifier waited for it count against no deadline of theirs."""
    waited_s, key = ctx.now - sandbox.since_s - sandbox.excused_s, f"score:{sandbox.rollout}"
    sandbox.excused_s += waited_s
    if sandbox.purpose == "rollout":
        key = f"rollout:{sandbox.rollout}"
        if (found := ctx.find(sandbox.rollout)) is not None:
            found[1].waited_s += waited_s
    if key in ctx.state.deadlines:
        ctx.index.expect(key, ctx.state.deadlines[key] + waited_s)


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
            ctx.index.started(sandbox, "releasing")
            ctx.ask(ReleaseSandbox(sandbox.rollout, sandbox.attempt, name))
            ctx.expect(f"sandbox:{name}", ctx.settings.deadlines.sandbox_s)


def grant(ctx: Context) -> None:
    """Grant what the quota allows, verifiers first."""
    index = ctx.index
    for purpose, reserve in (("verify", 0), ("rollout", ctx.settings.verify_sandboxes)):
        line = index.wanted[purpose]
        quota = ctx.settings.max_sandboxes - ctx.settings.ready_sandboxes - reserve
        while line and index.num_live_sandboxes < quota:
            if not _may_start(ctx):
                return
            name, sandbox = next(iter(line.items()))
            index.grant(name, sandbox)
            ctx.ask(GrantSandbox(sandbox.rollout, sandbox.attempt, name))
            ctx.expect(f"sandbox:{name}", ctx.settings.deadlines.sandbox_s)


def _may_start(ctx: Context) -> bool:
    """Whether one more may start now at the set rate, which is kept over any second; else wake up then."""
    rate, state = ctx.settings.max_sandbox_starts_per_s, ctx.state
    limits = (ctx.settings.max_starting_sandboxes, state.refusals.most_starting)
    if any(limit and ctx.index.num_starting_sandboxes >= limit for limit in limits):
        return False
    refusals, live = state.refusals, ctx.index.num_live_sandboxes
    if refusals.until_s > ctx.now and (refusals.rests or live >= refusals.level):
        ctx.index.expect("starts", refusals.until_s)
        return False
    if refusals.reason and live > refusals.level:
        return False  # one asks already whether there is more
    if not rate:
        return True
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
