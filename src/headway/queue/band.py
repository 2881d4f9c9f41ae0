"""A controller that keeps a used share inside a band by limiting how many are in flight. Pure.

One machine a replica (share of its KV cache in use) and one for the sandbox quota. Additive and slow on the
way up, multiplicative and at once on the way down:

- below the band and the limit reached: grow towards the middle of the band. What is in flight needs its own
  lifetime to fill its memory, so a limit grows by at most `growth` of itself in one mean lifetime, and by
  more, up to doubling, far below the band; with `high / low >= 1 + growth` what was let in below the band
  does not end above it.
- inside the band: hold. The band is the hysteresis.
- at or above `high` (soft trim): let nothing in until the share is in the middle of the band again. When the
  share was that high on average, over a quarter of a lifetime, the limit is cut too; those that are left are
  old and full, so the share falls later than their number, and the next cut comes half a lifetime later.
- at or above `hard` (hard trim): cut the limit, and those beyond it give their memory up now.

Invariants: `least <= limit <= most`; a limit that nobody reaches does not grow (no windup); a cut is not
repeated before the one before it has had its effect, so that one overload halves nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headway.core.settings import Problem, setting

Phase = Literal["grow", "hold", "soft", "hard"]
_SMOOTHING = 4.0  # measurements are averaged over a lifetime by this


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Section [concurrency]: how many rollouts run at once, by how full the generator's KV cache is."""

    mode: Literal["fixed", "adaptive"] = setting(
        "fixed",
        "fixed leaves the number of rollouts in flight to queue.depth and queue.max_running_rollouts; "
        "adaptive keeps each replica's KV use between low and high.",
    )
    initial: int = setting(
        0, "Rollouts in flight for each replica at the beginning; 0 takes queue.group_size.", ge=0
    )
    min_running: int = setting(
        0, "Rollouts in flight for each replica, at least; 0 takes queue.group_size.", ge=0
    )
    max_running: int = setting(4096, "Rollouts in flight for each replica, at most.", ge=1)
    low: float = setting(
        0.6, "Share of the KV cache in use below which more rollouts are let in.", gt=0, lt=1
    )
    high: float = setting(
        0.85,
        "Share from which nothing more is let in until it is back in the middle of the band.",
        gt=0,
        le=1,
    )
    hard: float = setting(
        0.95, "Share from which rollouts are parked at once, before the engine preempts them.", gt=0, le=1
    )
    growth: float = setting(
        0.35, "How much more may be let in within one mean rollout duration, of what runs.", gt=0, le=1
    )
    trim: Literal["youngest", "longest"] = setting(
        "youngest",
        "Which rollouts a hard trim parks: the youngest lose the least work, the longest free the most.",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if not self.low < self.high:
            yield Problem("low", self.low, f"low must be below high ({self.high:g})", "0.6 is the default.")
        elif self.growth > self.high / self.low - 1 + 1e-9:
            most = self.high / self.low - 1
            yield Problem(
                "growth",
                self.growth,
                f"growth may not exceed high / low - 1 = {most:.2f}: what is let in below the band would end "
                "above it",
                f"Use {most:.2f} or less, or a wider band.",
            )
        if self.high > self.hard:
            yield Problem("hard", self.hard, f"hard may not be below high ({self.high:g})", "Use 0.95.")
        if max(self.min_running, self.initial) > self.max_running:
            yield Problem(
                "max_running",
                self.max_running,
                f"max_running may not be below min_running ({self.min_running}) and initial ({self.initial})",
                "Raise it.",
            )


@dataclass(frozen=True, slots=True)
class Band:
    """Thresholds and bounds of one machine."""

    low: float
    high: float
    hard: float
    growth: float
    least: int
    most: int
    unit: int = 1  # how many are let in together, so that fewer than this may be missing at the limit

    @property
    def target(self) -> float:
        """The middle of the band."""
        return (self.low + self.high) / 2


@dataclass(slots=True)
class BandState:
    """One machine's memory."""

    limit: float
    phase: Phase = "hold"
    mean_used: float = 0.0  # the share, averaged over about a quarter of a lifetime
    sampled_s: float = -1.0  # time of the newest sample, below 0 before the first
    cut_s: float = -1.0  # time of the newest cut, below 0 before the first

    @property
    def is_open(self) -> bool:
        """Whether anything new may be let in."""
        return self.phase in ("grow", "hold")


@dataclass(slots=True)
class ConcurrencyState:
    """What the concurrency rule remembers."""

    bands: dict[str, BandState] = field(default_factory=dict[str, BandState])  # by replica
    sandboxes: BandState | None = None  # of the sandbox quota, once that was in the way
    lifetime_s: float = 0.0  # mean time in flight of a rollout, 0 before the first ended
    told: int = -1  # the limit that a note told last


def sample(
    state: BandState, band: Band, *, used: float, in_flight: int, now: float, lifetime_s: float
) -> int:
    """Take one measurement in and move the limit; return how many must give up their memory now.

    Args:
        state: changed in place.
        band: thresholds.
        used: share in use, 0 to 1 and more.
        in_flight: how many the share belongs to.
        now: seconds.
        lifetime_s: mean time that one stays in flight; 0 while unknown, and nothing grows then.
    """
    elapsed_s = now - state.sampled_s if state.sampled_s >= 0 else 0.0
    weight = min(1.0, _SMOOTHING * elapsed_s / lifetime_s) if lifetime_s > 0 and state.sampled_s >= 0 else 1.0
    state.mean_used += weight * (used - state.mean_used)
    state.sampled_s = now
    settled = in_flight <= state.limit + 1e-9  # the cut before has had its effect on the number
    waited = state.cut_s < 0 or now - state.cut_s >= lifetime_s / 2
    if used >= band.hard:
        state.phase = "hard"
        if settled:
            _cut(state, band, in_flight * band.target / used, now)
        return max(0, in_flight - int(state.limit))
    if state.mean_used >= band.high and settled and waited:
        _cut(state, band, in_flight * band.target / state.mean_used, now)
    if used >= band.high:
        state.phase = "soft"
    elif state.phase in ("soft", "hard") and used >= band.target:
        pass  # the gate opens in the middle of the band
    elif max(used, state.mean_used) < band.low and lifetime_s > 0 and in_flight + band.unit > state.limit:
        state.phase = "grow"
        room = band.target / max(used, state.mean_used, 1e-3) - 1.0
        rate = min(1.0, max(min(band.growth, room), room / 2))
        state.limit = _within(band, state.limit * (1.0 + rate * min(1.0, elapsed_s / lifetime_s)))
    else:
        state.phase = "hold"
    return 0


def _cut(state: BandState, band: Band, limit: float, now: float) -> None:
    state.limit = _within(band, min(state.limit, limit))
    state.mean_used = min(state.mean_used, band.target)
    state.cut_s = now


def _within(band: Band, limit: float) -> float:
    return min(float(band.most), max(float(band.least), limit))
