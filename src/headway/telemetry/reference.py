"""What each metric is, and docs/metrics.md: python -m headway.telemetry.reference > docs/metrics.md."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

_FILE = Path(__file__).with_name("definitions.toml")
_INTRODUCTION = """\
# Metrics

Generated from the definitions: `python -m headway.telemetry.reference > docs/metrics.md`.

Every key that `headway report RUN --json` prints, and that `summary.json` in a run directory holds. All
of them are derived from the journal and from nothing else, by
[src/headway/telemetry](../src/headway/telemetry). A value that the run does not tell (yet) is `null`.
Units are in the names: `_s` seconds, `_tokens` tokens, `_per_s` a second; a `_fraction` is between 0 and
1.

Four shapes repeat:

- **tails**: `{mean, p50, p90, p99, max}` of all values, percentiles interpolated linearly.
- **histogram**: `{counts, mean, max}`; `counts` maps a number of steps to how often it occurred.
- **level**: `{mean, max}` of a number over time, the mean weighted by time.
- **course**: `{first, last, mean, max}` of a number that each surviving step has; first and last are
  means over the first and the last tenth of the steps, rounded up. Steps weigh alike.

**The training window** is the time that rates and the trainer's shares are taken over: in each life of a
run, from the first start of a train rollout to the moment the run stops admitting, or to the end of the
last step if that is later. Loading models, an evaluation that runs alone before it, and the final
publish, checkpoint and evaluation are outside. An evaluation beside training is inside.

**A train rollout counts as finished when it is scored**, before any filter. Rollouts of evaluations are
left out everywhere but under `eval.` and `rl.eval.`, `conservation.` and the weights' and sandboxes' own
times.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that belong together; `before` and `after` are Markdown around their table."""

    title: str
    metrics: dict[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )  # (unit, definition)
    before: str = ""
    after: str = ""


@functools.cache
def sections() -> tuple[Section, ...]:
    """Return all definitions, in the order of the page."""
    raw = tomllib.loads(_FILE.read_text(encoding="utf-8"))["section"]
    return tuple(
        Section(
            item["title"],
            {key: (unit, text) for key, (unit, text) in item.get("metrics", {}).items()},
            item.get("before", ""),
            item.get("after", ""),
        )
        for item in raw
    )


def definition(key: str) -> tuple[str, str] | None:
    """Return (unit, definition) of a summary's key, None for one that has none; `{name}` fits any part."""
    for section in sections():
        for known, told in section.metrics.items():
            if re.fullmatch(re.sub(r"\\\{\w+\\\}", r"[A-Za-z0-9_]+", re.escape(known)), key):
                return told
    return None


def current_page() -> str:
    """Return docs/metrics.md as the definitions stand now."""
    return "\n".join([_INTRODUCTION, *map(_section, sections())])


def _section(section: Section) -> str:
    parts = [f"## {section.title}"]
    if section.before:
        parts.append(section.before)
    if section.metrics:
        rows = "\n".join(f"| `{key}` | {unit} | {text} |" for key, (unit, text) in section.metrics.items())
        parts.append(f"| Key | Unit | Definition |\n| --- | --- | --- |\n{rows}")
    if section.after:
        parts.append(section.after)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(current_page(), end="")
