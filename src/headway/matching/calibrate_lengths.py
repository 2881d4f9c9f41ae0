"""Lengths, turns and the time between answers of a run's rollouts, and how they drifted."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from headway.matching.components import Components, Estimate, Value, components
from headway.matching.fits import MAX_CENSORED, LogNormal, lognormal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.matching.calibration import Found
    from headway.matching.recorded_run import RecordedAttempt, Recording

LEAST_CALL_S = 0.001  # between two answers, from which something is thought to have happened there


def fit(recording: Recording, found: Found) -> list[str]:
    """Add the parameters of [workload] that are lengths and times; return warnings."""
    attempts, warnings = recording.train(), list[str]()
    steps = max((attempt.step for attempt in attempts), default=0)
    drift: dict[str, Estimate] = {}
    _prompts(attempts, found)
    _answers(attempts, found, drift, warnings)
    _turns(attempts, found, drift)
    _between(attempts, found, drift, warnings)
    reached = {name: slope for name, slope in drift.items() if slope.differs_from_zero}
    for name, slope in reached.items():
        found.add(
            f"workload.drift.{name}", math.exp(slope.value * steps), "factor at the last step",
            low=math.exp(slope.low * steps), high=math.exp(slope.high * steps),
        )  # fmt: skip
    if reached:
        found.add("workload.drift_steps", max(1, steps), "steps of the run")
    return warnings


def answers(attempts: Sequence[RecordedAttempt]) -> list[Value]:
    """Return the lengths of all answers; those that a limit or an ending cut are censored."""
    values: list[Value] = []
    for one in attempts:
        for turn in one.turns:
            if turn.num_tokens:
                cut = turn.finish != "stop"
                values.append(Value(float(turn.num_tokens), cut, one.rollout, one.task_id, one.step))
        unfinished = one.num_tokens - one.num_answered
        if one.outcome in ("stopped", "failed") and unfinished > 0:
            values.append(Value(float(unfinished), True, one.rollout, one.task_id, one.step))
    return values


def turns(attempts: Sequence[RecordedAttempt]) -> list[Value]:
    """Return the numbers of turns; those of attempts that did not come to their end are censored."""
    return [
        Value(
            float(len(one.turns)), one.outcome != "ended" or one.truncated, one.rollout, one.task_id, one.step
        )
        for one in attempts
        if one.turns
    ]


def between(attempts: Sequence[RecordedAttempt], *, last: bool) -> list[Value]:
    """Return the seconds between two answers, or between the last answer and the rollout's end."""
    values: list[Value] = []
    for one in attempts:
        for place, turn in enumerate(one.turns):
            is_last = place == len(one.turns) - 1 and one.outcome == "ended"
            if turn.after_s is not None and is_last == last and turn.finish in ("stop", "length"):
                values.append(Value(turn.after_s, turn.cut_short, one.rollout, one.task_id, one.step))
    return values


def _prompts(attempts: Sequence[RecordedAttempt], found: Found) -> None:
    prompts = [one.turns[0].prompt_tokens for one in attempts if one.turns]
    if prompts:
        source = "tokens before the first answer"
        found.add("workload.prompt_tokens", max(1, round(fmean(prompts))), source, num=len(prompts))
    added: list[int] = []
    for one in attempts:
        for before, after in zip(one.turns, one.turns[1:], strict=False):
            added.append(max(0, after.prompt_tokens - before.prompt_tokens - before.num_tokens))
    if added:
        source = "tokens that came between two answers"
        found.add("workload.observation_tokens", fmean(added), source, num=len(added))


def _answers(
    attempts: Sequence[RecordedAttempt], found: Found, drift: dict[str, Estimate], warnings: list[str]
) -> None:
    values = answers(attempts)
    whole, cut = _split(values)
    marginal = lognormal(whole, cut, counts=True)
    if not values:
        for name in ("answer_tokens", "answer_sigma"):
            found.stand_in(f"workload.{name}", None, "no answer ended: left to the default")
        return
    if marginal is None or marginal.censored > MAX_CENSORED:
        longest = max(value.value for value in values)
        share = len(cut) / len(values)
        why = f"{share:.0%} of {len(values):,} answers ran into a limit or were ended, so their lengths are "
        why += f"not known: the longest, {longest:.0f}, stands in for all"
        found.stand_in("workload.answer_tokens", longest, why, num=len(values), censored=share)
        found.stand_in("workload.answer_sigma", 0.0, why)
        return
    parts = components(values, counts=True)
    source = "answers, cut ones as censored"
    if parts is None or not marginal.sigma:
        _add_plain(found, "answer_tokens", "answer_sigma", marginal, source)
        return
    _add_parts(found, "answer_tokens", parts, marginal, source)
    found.add("workload.answer_sigma", parts.answer_sigma.value, "spread of one rollout's answers",
              num=parts.num, low=parts.answer_sigma.low, high=parts.answer_sigma.high)  # fmt: skip
    for name, part, what in (
        ("rollout_sigma", parts.rollout_sigma, "rollout has two answers"),
        ("task_sigma", parts.task_sigma, "task has two rollouts"),
    ):
        if part is None:
            found.stand_in(f"workload.{name}", 0.0, f"hardly a {what}: its part is in answer_sigma")
        else:
            found.add(f"workload.{name}", part.value, "variance components", num=parts.num, low=part.low,
                      high=part.high)  # fmt: skip
    if parts.slope is not None:
        drift["answer_tokens"] = parts.slope
    if not marginal.is_good:
        warnings.append(
            f"answers are not lognormal (KS {marginal.ks:.2f}): `headway whatif` replays the recorded ones, "
            "a plan from this SPEC is rougher"
        )


def _turns(attempts: Sequence[RecordedAttempt], found: Found, drift: dict[str, Estimate]) -> None:
    values = turns(attempts)
    whole, cut = _split(values)
    fitted = lognormal(whole, cut, counts=True)
    if fitted is None:
        found.stand_in("workload.turns", 1.0, "no rollout came to its end: 1")
        return
    source = "turns of rollouts, those cut short as censored"
    parts = components(values, counts=True) if fitted.sigma and fitted.censored <= MAX_CENSORED else None
    if parts is None:
        _add_plain(found, "turns", "turns_sigma", fitted, source)
        return
    _add_parts(found, "turns", parts, fitted, source)
    found.add("workload.turns_sigma", parts.sigma, source, num=parts.num, ks=fitted.ks)
    if parts.slope is not None:
        drift["turns"] = parts.slope


def _between(
    attempts: Sequence[RecordedAttempt], found: Found, drift: dict[str, Estimate], warnings: list[str]
) -> None:
    values = between(attempts, last=False)
    after = between(attempts, last=True)
    whole, cut = _split(values)
    tail = fmean(value.value for value in after) if after else 0.0
    within = fmean(whole) if whole else 0.0
    final = tail > max(LEAST_CALL_S, 0.2 * within)
    if final:
        values = [*values, *after]
        whole, cut = _split(values)
    fitted = lognormal(whole, cut)
    if fitted is None or fitted.mean < LEAST_CALL_S:
        return
    calls = sum(turn.calls_s for one in attempts for turn in one.turns)
    share = calls / max(1e-9, sum(value.value for value in values))
    source = "time between two answers"
    source += ", and behind the last one" if final else ""
    source += f"; recorded tool calls explain {min(1.0, share):.0%}"
    if share < 0.5 and any(turn.num_calls for one in attempts for turn in one.turns):
        warnings.append(f"tool calls explain only {share:.0%} of the time between answers")
    _add_plain(found, "tool_s", "tool_sigma", fitted, source)
    found.add("workload.final_tool", final, "whether something takes time behind the last answer")
    parts = components(values) if fitted.sigma else None
    if parts is not None and parts.slope is not None:
        drift["tool_s"] = parts.slope


def _add_plain(found: Found, name: str, sigma: str, fitted: LogNormal, source: str) -> None:
    found.add(f"workload.{name}", fitted.mean, source, num=fitted.num, low=fitted.low, high=fitted.high,
              censored=fitted.censored, ks=fitted.ks)  # fmt: skip
    found.add(f"workload.{sigma}", fitted.sigma, source, num=fitted.num, ks=fitted.ks)


def _add_parts(found: Found, name: str, parts: Components, marginal: LogNormal, source: str) -> None:
    found.add(f"workload.{name}", parts.mean.value, source, num=parts.num, low=parts.mean.low,
              high=parts.mean.high, censored=parts.censored, ks=marginal.ks)  # fmt: skip


def _split(values: Sequence[Value]) -> tuple[list[float], list[float]]:
    whole = [value.value for value in values if not value.is_cut]
    return whole, [value.value for value in values if value.is_cut]
