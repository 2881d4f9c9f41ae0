"""Concurrency: how many rollouts are in flight, by how full the generator's memory and the sandbox quota are.

Each ReplicaChanged is one measurement of that replica's band (see `band`); how often they come does not
matter. The sandbox quota has a band of its own: rollouts that would only stand in the line for a sandbox are
not let in. The limit is the sum over the replicas, and the sandboxes' if that is less; admission and the
resumption of parked rollouts keep to it. A hard trim parks rollouts at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.notes import ConcurrencyChanged, Ignored
from headway.queue.band import Band, BandState, sample

if TYPE_CHECKING:
    from headway.core.events import ReplicaChanged
    from headway.queue.context import Context
    from headway.queue.state import GroupState, RolloutState

_SMOOTHING = 0.05  # weight of the newest rollout in the mean duration


def changed(ctx: Context, event: ReplicaChanged) -> list[tuple[GroupState, RolloutState]]:
    """A replica told its load; return the rollouts that must give up their engine memory now."""
    settings = ctx.settings.concurrency
    replica = ctx.state.replicas.get(event.replica)
    if replica is None or replica.epoch != event.epoch:
        ctx.note(Ignored("ReplicaChanged", event.replica))
        return []
    if settings.mode == "fixed":
        return []
    state = ctx.state.concurrency
    band = _engine_band(ctx)
    machine = state.bands.setdefault(event.replica, BandState(_initial(ctx)))
    excess = sample(
        machine,
        band,
        used=event.kv_used_fraction,
        in_flight=ctx.index.busy.get(event.replica, 0),
        now=ctx.now,
        lifetime_s=state.lifetime_s,
    )
    reason = f"{machine.phase} {event.replica}"
    if _sample_sandboxes(ctx):
        reason = "sandboxes"
    if ctx.index.parked and room_for_parked(ctx):
        ctx.state.resume_due = True
    _tell(ctx, reason)
    return _victims(ctx, event.replica, excess) if excess else []


def rollout_ended(ctx: Context, rollout: RolloutState) -> None:
    """A rollout finished: learn how long one stays in flight."""
    state, duration_s = ctx.state.concurrency, ctx.now - rollout.started_s
    if state.lifetime_s:
        duration_s = state.lifetime_s + _SMOOTHING * (duration_s - state.lifetime_s)
    state.lifetime_s = duration_s


def limit(ctx: Context) -> int | None:
    """Return how many rollouts of any purpose may be in flight; None sets no limit."""
    engines, sandboxes = _engine_limit(ctx), ctx.state.concurrency.sandboxes
    if engines is None or sandboxes is None:
        return engines
    return min(engines, int(sandboxes.limit))


def room_for_new(ctx: Context) -> int | None:
    """Return how many more rollouts may be let in now; None sets no limit."""
    sandboxes, room = ctx.state.concurrency.sandboxes, room_for_parked(ctx)
    if room is None or sandboxes is None:
        return room
    free = int(sandboxes.limit) - _coming(ctx) if sandboxes.is_open else 0
    return max(0, min(room, free))


def room_for_parked(ctx: Context) -> int | None:
    """Return how many parked rollouts may go on now; None sets no limit.

    They hold their sandboxes already, so the quota of these is no reason to wait: it would wait for itself.
    """
    most = _engine_limit(ctx)
    if most is None:
        return None
    bands = ctx.state.concurrency.bands
    if bands and not any(band.is_open for band in bands.values()):
        return 0
    return max(0, most - _coming(ctx))


def _engine_limit(ctx: Context) -> int | None:
    if ctx.settings.concurrency.mode == "fixed":
        return None
    bands, initial = ctx.state.concurrency.bands, int(_initial(ctx))
    return sum(int(bands[name].limit) if name in bands else initial for name in ctx.state.replicas)


def _coming(ctx: Context) -> int:
    """Return how many run, or will when their task is here."""
    requested = len(ctx.index.train["requested"]) * ctx.settings.queue.group_size
    return sum(ctx.index.busy.values()) + requested


def _initial(ctx: Context) -> float:
    return float(ctx.settings.concurrency.initial or ctx.settings.queue.group_size)


def _engine_band(ctx: Context) -> Band:
    settings, group_size = ctx.settings.concurrency, ctx.settings.queue.group_size
    return Band(
        settings.low,
        settings.high,
        settings.hard,
        settings.growth,
        least=settings.min_running or group_size,
        most=settings.max_running,
        unit=group_size,
    )


def _sample_sandboxes(ctx: Context) -> bool:
    """Take the sandbox quota in; return whether it is what holds the limit down."""
    state, index = ctx.state.concurrency, ctx.index
    waiting = len(index.wanted["rollout"])
    quota = ctx.settings.max_sandboxes - ctx.settings.ready_sandboxes - ctx.settings.verify_sandboxes
    used = (index.num_live_sandboxes + waiting) / max(1, quota)
    in_flight = sum(index.busy.values())
    if state.sandboxes is None:
        if used <= 1.0:
            return False  # the quota has never been in the way
        state.sandboxes = BandState(float(in_flight))
    group_size = ctx.settings.queue.group_size
    most = ctx.settings.concurrency.max_running * max(1, len(ctx.state.replicas))
    band = Band(0.9, 1.0 + 1e-9, float("inf"), 0.1, least=group_size, most=most, unit=group_size)
    sample(
        state.sandboxes,
        band,
        used=used,
        in_flight=in_flight,
        now=ctx.now,
        lifetime_s=state.lifetime_s,
    )
    return state.sandboxes.phase != "hold"


def _victims(ctx: Context, replica: str, num: int) -> list[tuple[GroupState, RolloutState]]:
    """Choose who is parked; called rarely, so it may look at all that run on the replica."""
    running = [
        (group, rollout)
        for group in ctx.index.train["running"].values()
        if group.replica == replica
        for rollout in group.rollouts
        if rollout.station == "running"
    ]
    parking = sum(rollout.pending == "parking" for _, rollout in running)
    free = [(group, rollout) for group, rollout in running if not rollout.pending]
    if ctx.settings.concurrency.trim == "youngest":
        free.sort(key=lambda pair: (-pair[1].started_s, pair[1].id))
    else:
        free.sort(key=lambda pair: (-pair[1].num_tokens, pair[1].id))
    return free[: max(0, num - parking)]


def _tell(ctx: Context, reason: str) -> None:
    now, state = limit(ctx), ctx.state.concurrency
    if now is not None and now != state.told:
        state.told = now
        ctx.note(ConcurrencyChanged(now, reason))
