"""Engine speed from the turns of a journal.

    decode_s of a turn = sum over its iterations of base + row * running + token * resident

The journal tells when each answer was decoded and what it held, so the numbers of running requests and of
resident tokens of its replica are known at every moment; their means during a turn are the columns. Prefills
that fell into a turn held it up, and pauses for new weights that kept the KV did: both are taken off first. A
prefill's own time is fitted over bursts, for requests that came together were computed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headway.matching.engine_requests import Request, keeps_kv, requests_of
from headway.matching.fits import Line, line, varies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headway.matching.recorded_run import Recording

    Array = NDArray[np.float64]

MAX_CONDITION = 30.0  # above which two columns cannot be told apart
MIN_TURNS = 30
_TOGETHER_S = 0.005  # prefills with no more than this between them were one burst


@dataclass(frozen=True, slots=True)
class Missing:
    """A coefficient that the journal cannot tell, and what stands in."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineFit:
    """Seconds of a decode iteration and of a prefill."""

    decode: Line | None  # base, row, token
    prefill: Line | None  # base, token
    missing: tuple[Missing, ...]
    running: tuple[float, float]  # 5th and 95th percentile of what was seen
    resident: tuple[float, float]
    swaps: tuple[float, ...]  # seconds of each pause for a new version, without computing KV anew


def fit_engine(recording: Recording) -> EngineFit:
    """Fit both lines; a coefficient that cannot be told is 0 in them and stands in `missing`."""
    requests = requests_of(recording)
    by_replica: dict[str, list[Request]] = {}
    for request in requests:
        by_replica.setdefault(request.replica, []).append(request)
    missing: list[Missing] = []
    prefill = _fit_prefill(by_replica, missing)
    rows: list[Array] = []
    for replica, mine in by_replica.items():
        pauses = [(t, pause) for name, t, pause in recording.applies if name == replica]
        rows.append(_rows(mine, prefill, pauses if keeps_kv(recording) else ()))
    table = np.concatenate(rows) if rows else np.zeros((0, 4))
    table = table[np.isfinite(table).all(axis=1)]
    decode = _fit_decode(table, missing)
    swaps = tuple(
        max(0.0, pause_s - (0.0 if keeps_kv(recording) else _anew(by_replica.get(replica, []), t, prefill)))
        for replica, t, pause_s in recording.applies
    )
    return EngineFit(decode, prefill, tuple(missing), _ends(table, 2), _ends(table, 3), swaps)


def _anew(mine: Sequence[Request], t: float, prefill: Line | None) -> float:
    """Return the seconds to compute the KV of what was being decoded anew."""
    if prefill is None:
        return 0.0
    base, token = prefill.coefficients
    total = 0.0
    for one in mine:
        if one.begin_s < t < one.end_s:
            done = (t - one.begin_s) / (one.end_s - one.begin_s)
            total += base + token * (one.context_tokens + done * one.num_tokens)
    return total


def _ends(table: Array, column: int) -> tuple[float, float]:
    if not len(table):
        return 0.0, 0.0
    low, high = (float(value) for value in np.quantile(table[:, column], (0.05, 0.95)))
    return low, high


def _fit_prefill(by_replica: dict[str, list[Request]], missing: list[Missing]) -> Line | None:
    lengths: list[float] = []
    nums: list[float] = []
    tokens: list[float] = []
    for mine in by_replica.values():
        start = end = float("-inf")
        for request in sorted(mine, key=lambda one: one.begin_s - one.prefill_s):
            begin = request.begin_s - request.prefill_s
            if request.partial or request.prefill_s <= 0.0:
                continue
            if begin > end + _TOGETHER_S:
                lengths.append(0.0)
                nums.append(0.0)
                tokens.append(0.0)
                start = end = begin
            end = max(end, request.begin_s)
            lengths[-1] = end - start
            nums[-1] += 1
            tokens[-1] += request.prefill_tokens
    if len(lengths) < MIN_TURNS // 3:
        missing.append(Missing("prefill", f"{len(lengths)} prefills are too few"))
        return None
    weights = [1.0] * len(lengths)  # as for decoding
    fitted = line((nums, tokens), lengths, weights)
    if fitted.condition > MAX_CONDITION:
        reason = f"prompts are all about as long (condition {fitted.condition:.0f}): per token alone"
        missing.append(Missing("prefill_base_s", reason))
        alone = line((tokens,), lengths, weights)
        fitted = Line((0.0, *alone.coefficients), alone.r2, fitted.condition, alone.num, alone.error)
    return fitted


def _rows(mine: Sequence[Request], prefill: Line | None, pauses: Sequence[tuple[float, float]]) -> Array:
    """Return (tokens, seconds of decoding alone, mean running, mean resident) of each whole answer."""
    begin = np.asarray([one.begin_s for one in mine])
    end = np.maximum(begin, np.asarray([one.end_s for one in mine]))
    context = np.asarray([float(one.context_tokens) for one in mine])
    tokens = np.asarray([float(one.num_tokens) for one in mine])
    grows = tokens / np.maximum(end - begin, 1e-9)
    at = np.concatenate([begin, end])
    order = np.argsort(at, kind="stable")
    at = at[order]
    ones = np.ones(len(mine))
    running = np.cumsum(np.concatenate([ones, -ones])[order])
    slope = np.cumsum(np.concatenate([grows, -grows])[order])
    jumps = np.cumsum(np.concatenate([context, -(context + tokens)])[order])
    spans = np.diff(at, append=at[-1:])
    grown = np.concatenate([[0.0], np.cumsum(slope * spans)[:-1]])
    level = jumps + grown  # just after each moment
    areas = (running * spans, (level + slope * spans / 2) * spans)
    sums = [np.concatenate([[0.0], np.cumsum(area)[:-1]]) for area in areas]
    seconds = np.maximum(end - begin, 1e-9)
    means = [(np.interp(end, at, total) - np.interp(begin, at, total)) / seconds for total in sums]
    spent = np.asarray([one.decode_s for one in mine])
    held = _held_up(mine, begin, end, prefill) + _paused(begin, end, pauses)
    alone = np.maximum(spent - held, 0.1 * spent)
    usable = np.asarray([not one.partial and one.num_tokens > 0 for one in mine])
    return np.stack([tokens, alone, np.maximum(means[0], 1.0), means[1]], axis=1)[usable]


def _held_up(mine: Sequence[Request], begin: Array, end: Array, prefill: Line | None) -> Array:
    """Return the seconds of others' prefills that ended while each was decoded."""
    if prefill is None:
        return np.zeros(len(begin))
    base, token = prefill.coefficients
    work = np.asarray([base + token * one.prefill_tokens if one.prefill_s > 0 else 0.0 for one in mine])
    order = np.argsort(begin, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(work[order])])
    ends = begin[order]
    before_end = total[np.searchsorted(ends, end, side="left")]
    return np.maximum(0.0, before_end - total[np.searchsorted(ends, begin, side="right")])


def _paused(begin: Array, end: Array, pauses: Sequence[tuple[float, float]]) -> Array:
    """Return the seconds that the replica stood still for new weights in each interval."""
    total = np.zeros(len(begin))
    for at, pause_s in pauses:
        total += np.clip(np.minimum(end, at) - np.maximum(begin, at - pause_s), 0.0, None)
    return total


def _fit_decode(table: Array, missing: list[Missing]) -> Line | None:
    if len(table) < MIN_TURNS:
        missing.append(Missing("decode", f"{len(table)} answers are too few"))
        return None
    tokens, seconds, running, resident = (table[:, column] for column in range(4))
    per_token, ones = seconds / tokens, np.ones(len(table))
    weights = tokens  # so that the fit's seconds sum to those that were measured
    load, held = varies(list(running)), varies(list(resident / running))
    columns: list[Array] = [ones]
    if load:
        columns.append(running)
    else:
        reason = f"about {float(np.mean(running)):.1f} requests ran all the time: base tells it all"
        missing.append(Missing("decode_row_s", reason))
    if load and held:
        columns.append(resident)
    fitted = line([list(column) for column in columns], list(per_token), list(weights))
    if load and held and fitted.condition > MAX_CONDITION:
        held = False
        reason = f"it goes along with the number running (condition {fitted.condition:.0f}): row tells both"
        missing.append(Missing("decode_token_s", reason))
        fitted = line([list(column) for column in columns[:2]], list(per_token), list(weights))
    elif not held or not load:
        reason = "all requests held about the same" if load else "the load did not vary"
        missing.append(Missing("decode_token_s", f"{reason}: 0"))
    found = [*fitted.coefficients, 0.0, 0.0][:3]
    return Line((found[0], found[1], found[2]), fitted.r2, fitted.condition, fitted.num, fitted.error)
