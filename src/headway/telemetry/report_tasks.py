"""The report's lines on what entered: oversampling's waste and bias, acceptance, the mix, the curriculum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.telemetry.oversampling import KINDS
from headway.telemetry.tasks import REASONS
from headway.telemetry.text import number, percent

Summary = Mapping[str, Any]
_WORDS = {
    "zero_advantage": "zero advantage",
    "band": "outside the solve-rate band",
    "verdict": "your verdict",
}
_MAX_LISTED = 8  # regressed tasks


def oversampling_lines(summary: Summary) -> list[str]:
    """Return what oversampling threw away, nothing where it threw nothing away."""
    thrown = {kind: summary[f"rl.oversampling.{kind}.rollout_fraction"] or 0.0 for kind in KINDS}
    if not thrown["finished"] and not thrown["unfinished"]:
        return []
    shares = ", ".join(f"{kind} {percent(share, 1)}" for kind, share in thrown.items())
    tokens = sum(summary[f"rl.oversampling.{kind}.token_fraction"] or 0.0 for kind in KINDS)
    ratio = summary["rl.oversampling.length_ratio"]
    lines = [f"oversampling threw away of its rollouts: {shares}; {percent(tokens, 1)} of the tokens"]
    if ratio is not None:
        kept = number(summary["rl.oversampling.kept_tokens"], 1)
        every = number(summary["rl.oversampling.all_tokens"], 1)
        bias = "no shorter" if ratio >= 1.0 else f"at least {percent(1.0 - ratio, 1)} shorter"
        lines.append(
            f"kept rollouts have {kept} tokens, all together {every} as far as they came: {bias} than all"
        )
    return lines


def acceptance_line(summary: Summary) -> list[str]:
    """Return which filter dropped how many groups, nothing where only the zero-advantage filter acts."""
    counts = {reason: summary[f"rl.acceptance.{reason}.groups"] for reason in REASONS}
    if not counts["band"] and not counts["verdict"]:
        return []
    words = ", ".join(f"{num} {_WORDS[reason]}" for reason, num in counts.items() if num)
    return [f"groups dropped: {words}"]


def task_lines(summary: Summary) -> list[str]:
    """Return the mix, the levels and the tasks that rest, nothing for one source of one level."""
    lines: list[str] = []
    sources, trained = summary["rl.mix.settled"], summary["rl.mix.trained"]
    if len(sources) > 1:
        whole = sum(trained.values())
        parts = [
            f"{name} {percent(trained.get(name, 0) / whole) if whole else '-'} of the trained groups "
            f"(solved {percent(row['solve_rate'])})"
            for name, row in sources.items()
        ]
        lines.append(f"sources: {', '.join(parts)}")
    levels = summary["rl.curriculum.levels"]
    if len(levels) > 1:
        parts = [
            f"{name}: {row['groups']} groups, solved {percent(row['solve_rate'])}"
            for name, row in levels.items()
        ]
        lines.append(f"levels: {'; '.join(parts)}")
        if (inside := summary["rl.curriculum.in_band_fraction"]) is not None:
            lines.append(f"groups inside the curriculum's band: {percent(inside)}")
    if summary["rl.curriculum.retirements"]:
        lines.append(
            f"tasks retired {summary['rl.curriculum.retirements']} times, returned "
            f"{summary['rl.curriculum.returns']} times, {summary['rl.curriculum.resting']} rest now"
        )
    regressed = summary["rl.curriculum.regressed"]
    if regressed:
        newest = list(dict.fromkeys(row["task"] for row in reversed(regressed)))
        more = f" and {len(newest) - _MAX_LISTED} more" if len(newest) > _MAX_LISTED else ""
        lines.append(f"regressed tasks, newest first: {', '.join(newest[:_MAX_LISTED])}{more}")
    return lines
