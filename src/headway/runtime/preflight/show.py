"""How findings look: aligned lines with the remedy behind, wrapped and coloured on a terminal only."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.runtime.preflight.findings import Finding, Level

if TYPE_CHECKING:
    from headway.matching.memory import MemoryEstimate
    from headway.runtime.preflight.checks import Looked

_COLOURS: dict[Level, str] = {"ok": "32", "warning": "33", "error": "31"}
_NAME_WIDTH = 13
_MIB = 1 << 20


@dataclass(slots=True)
class Tally:
    """What was found so far."""

    counts: dict[Level, int] = field(default_factory=lambda: {"ok": 0, "warning": 0, "error": 0})
    not_run: list[str] = field(default_factory=list[str])

    def add(self, looked: Looked) -> None:
        """Count a check's findings."""
        for finding in looked.findings:
            self.counts[finding.level] += 1
        if not looked.findings:
            self.not_run.append(looked.check.name)

    def exit_code(self, *, strict: bool) -> int:
        """0 when a run can start; 2 on an error, and with `strict` on a warning."""
        return 2 if self.counts["error"] or (strict and self.counts["warning"]) else 0

    def last_line(self) -> str:
        """Return the sum in one line."""
        errors, warnings = self.counts["error"], self.counts["warning"]
        parts = [f"{self.counts['ok']} ok", _many(warnings, "warning"), _many(errors, "error")]
        text = ", ".join(parts)
        if self.not_run:
            text += f"; not looked at because of these errors: {', '.join(self.not_run)}"
        if errors:
            return f"{text}. The run cannot start."
        return f"{text}. The run can start."


def line(name: str, finding: Finding, width: int | None, *, colour: bool) -> str:
    """Return one finding; `width` wraps it, None leaves it one line."""
    level = f"{finding.level:<7}"
    text = finding.sentence()
    if width is not None:
        indent = " " * (len(level) + 1 + _NAME_WIDTH + 1)
        room = max(30, width - len(indent))
        text = f"\n{indent}".join(
            textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        )
    if colour:
        level = f"\x1b[{_COLOURS[finding.level]}m{level}\x1b[0m"
    return f"{level} {name:<{_NAME_WIDTH}} {text}"


def memory_table(estimate: MemoryEstimate) -> list[str]:
    """Return the estimate, a line a part; `up to` marks what is taken as the run goes."""
    rows: list[tuple[str, str, str, int, int]] = []
    for part in estimate.parts:
        likely = part.num_bytes if part.likely_bytes is None else part.likely_bytes
        rows.append((part.process, part.what, "up to" if part.is_limit else "", part.num_bytes, likely))
    likely = estimate.likely_processes
    rows += [("", f"all of {name}", "", size, likely[name]) for name, size in estimate.processes.items()]
    rows.append(("", "everything", "", estimate.num_bytes, sum(likely.values())))
    first, second = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = ["Memory, estimated:"]
    for process, what, mark, size, less in rows:
        text = f"  {process:<{first}}  {what:<{second}}  {mark:>5} {size / _MIB:>9,.0f} MiB"
        lines.append(text if less == size else f"{text}, likely {less / _MIB:,.0f} MiB")
    return lines


def to_plain(found: list[Looked], tally: Tally, estimate: MemoryEstimate | None) -> dict[str, Any]:
    """Return everything as JSON values."""
    checks = [{"check": each.check.name, **one.to_plain()} for each in found for one in each.findings]
    plain: dict[str, Any] = {
        "can_start": not tally.counts["error"],
        "counts": dict(tally.counts),
        "checks": checks,
        "not_looked_at": tally.not_run,
    }
    if estimate is not None:
        plain["memory"] = [
            {"process": part.process, "what": part.what, "bytes": part.num_bytes, "is_limit": part.is_limit}
            | ({} if part.likely_bytes is None else {"likely_bytes": part.likely_bytes})
            for part in estimate.parts
        ]
    return plain


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s'[: number != 1]}"
