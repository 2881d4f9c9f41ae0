"""Advice in words: all of it, a few lines at the end of a run, and rows for a report."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from headway.matching.advise import MIN_STEPS
from headway.telemetry.text import figures, percent, seconds
from headway.telemetry.told import Findings, Told

if TYPE_CHECKING:
    from headway.matching.advice.finding import Change, Figure, Finding, Gain
    from headway.matching.advise import Advice, Bottleneck

WIDTH = 100
NUM_SHORT = 2  # findings that are told at the end of a run
SHORT_STAKE = 0.10  # below, a finding waits for who asks
_SAID: dict[Bottleneck, str] = {
    "generator": "Generation is the bottleneck: the trainer waits for rollouts.",
    "trainer": "Training is the bottleneck: rollouts wait for the trainer.",
    "both in turn": "Generator and trainer take turns: each waits for the other.",
    "none": "Generator and trainer are matched: neither waits long for the other.",
    "unknown": f"Nothing can be told of its rates: that takes {MIN_STEPS} steps, and this run has fewer; the "
    "first ones fill it up.",
}


def advice_text(advice: Advice, name: str) -> str:
    """Return the advice as a person reads it."""
    lines = [f"{name}: {_SAID[advice.bottleneck]}"]
    lines += [f"  {figure_text(figure)}" for figure in advice.figures]
    lines.append("")
    for number, finding in enumerate(advice.findings, 1):
        lines += _finding(number, finding)
    if not advice.findings and advice.bottleneck != "unknown":
        lines += ["Nothing stands out: no finding explains as much as 3 % of the run's time.", ""]
    return "\n".join(lines).rstrip() + "\n"


def short_lines(advice: Advice, run: str) -> list[str]:
    """Return the findings that matter most, a line each, and how to see more.

    Nothing for a calm run, and one line for one that is too short.
    """
    if advice.bottleneck == "unknown":
        return [f"advice takes {MIN_STEPS} steps; this run has fewer, and the first ones fill it up"]
    told: list[Finding] = []
    for finding in advice.findings:
        settings = finding.change.settings
        again = settings and any(settings == one.change.settings for one in told)
        if finding.stake >= SHORT_STAKE and not again:
            told.append(finding)
    told = told[:NUM_SHORT]
    if not told:
        return []
    lines = [
        f"advice: {finding.title}; {_do(finding.change, short=True)}{_short_gain(finding.gain)}"
        for finding in told
    ]
    rest = len(advice.findings) - len(told)
    return [*lines, f"headway advise {run}: the evidence" + (f", and {rest} more" if rest else "")]


def findings_of(advice: Advice) -> Findings:
    """Return the advice as a report takes it in."""
    told = tuple(
        Told(
            title=finding.title,
            stake=finding.stake,
            when=finding.when,
            evidence=tuple(figure_text(figure) for figure in finding.evidence),
            change=_do(finding.change),
            gain=gain_text(finding.gain),
            caution=finding.caution,
        )
        for finding in advice.findings
    )
    typical = tuple(
        (figure.metric, range_text(figure)) for figure in advice.figures if figure.typical is not None
    )
    return Findings(_SAID[advice.bottleneck], told, typical)


def figure_text(figure: Figure) -> str:
    """Return a figure with the field's range beside it."""
    more = [figure.note] if figure.note else []
    if figure.typical is not None:
        more.append(f"the field: {range_text(figure)}")
    return f"{figure.label}: {value_text(figure.value, figure.unit)}" + (
        f" ({'; '.join(more)})" if more else ""
    )


def range_text(figure: Figure) -> str:
    """Return the field's range of a figure, "" where none is known."""
    if figure.typical is None:
        return ""
    low, high = figure.typical.low, value_text(figure.typical.high, figure.unit)
    return f"{'up' if low is None else value_text(low, figure.unit)} to {high}"


def value_text(value: float, unit: str) -> str:
    """Return a number in its unit."""
    match unit:
        case "share":
            return percent(value)
        case "seconds":
            return seconds(value)
        case "ratio":
            return f"{figures(value)}x"
        case "usd":
            return f"${value:.2f}"
        case _:
            return f"{value:,.0f}" if value == int(value) or value >= 1000 else figures(value)


def gain_text(gain: Gain) -> str:
    """Return what a change is predicted to bring."""
    if gain.high is None:
        return "not estimated"
    if gain.low is None:
        return f"up to {100 * gain.high:+.0f}% trained rollouts/s"
    between = f"{100 * gain.low:+.0f}% to {100 * gain.high:+.0f}%"
    if gain.mean is not None:
        return f"{100 * gain.mean:+.0f}% trained rollouts/s ({between})"
    return f"{between} trained rollouts/s"


def _finding(number: int, finding: Finding) -> list[str]:
    head = f"{number}. {finding.title}"
    stake = f"{percent(finding.stake)} of the run's time"
    gap = max(2, WIDTH - len(head) - len(stake))
    lines = [head + " " * gap + stake]
    if finding.when:
        lines.append(f"   {finding.when}")
    lines += [f"   - {figure_text(figure)}" for figure in finding.evidence]
    how = "" if finding.gain.high is None else f" ({finding.gain.how}: {finding.gain.basis})"
    parts = [("do", _do(finding.change)), ("gain", gain_text(finding.gain) + how)]
    if finding.caution:
        parts.append(("mind", finding.caution))
    for label, text in parts:
        wrapped = wrap(text, WIDTH - 9, break_long_words=False, break_on_hyphens=False)
        lines += [f"   {label:4}  {wrapped[0]}", *(f"         {line}" for line in wrapped[1:])]
    return [*lines, ""]


def _do(change: Change, *, short: bool = False) -> str:
    if not change.settings:
        return change.text
    settings = " ".join(f"{key}={value}" for key, value in change.settings.items())
    return settings if short else f"{settings}: {change.text}"


def _short_gain(gain: Gain) -> str:
    return "" if gain.high is None else f" ({gain_text(gain)})"
