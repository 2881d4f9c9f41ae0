"""The page's tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.telemetry.ledger import FATES, KEPT
from headway.telemetry.page.axes import SYMBOLS
from headway.telemetry.page.collect import SlowRollout
from headway.telemetry.page.parts import Cell, SettingRow, Table
from headway.telemetry.page.rollouts import label_of
from headway.telemetry.text import UNKNOWN, figures, number, percent, seconds

if TYPE_CHECKING:
    from headway.telemetry.page.collect import Mark, PageData

Summary = Mapping[str, Any]
MAX_ROWS = 50  # of lists that grow with the run
_REWARD = "rl.reward."
_WHY = {
    "filtered": "no signal, outside the band of solve rates, or dropped by your verdict",
    "pruned": "ended early",
    "cancelled": "not needed any more, by oversampling",
    "stale": "older than the bound",
    "voided": "a member of the group was lost or stale",
    "failed_infrastructure": "engine, worker or sandbox",
    "failed_environment": "the environment's own code",
    "failed_reward": "could not be scored",
    "stopped": "in flight when the run stopped",
    "unused": "finished and not needed at the end",
}


def slowest_rollouts(data: PageData) -> list[Table]:
    """Return the rollouts that took longest."""
    found = data.slowest_rollouts.items(SlowRollout)
    rows: list[tuple[str | Cell, ...]] = []
    for slow in found:
        rollout, parts = slow.rollout, slow.rollout.latency
        rows.append(
            (
                rollout.rollout,
                str(slow.step),
                seconds(rollout.end_to_end_s),
                seconds(parts.queue_s + parts.parked_s),
                seconds(parts.sandbox_start_s),
                seconds(parts.prefill_s),
                seconds(parts.decode_s),
                seconds(parts.tool_s),
                seconds(parts.score_s),
                f"{rollout.num_tokens:,}",
                f"{rollout.num_tool_calls:,}",
                number(rollout.reward, 3),
            )
        )
    names = ("whole", "queue", "sandbox", "prefill", "decode", "tool", "score", "tokens", "calls", "reward")
    caption = (
        "Train rollouts; the step is the one in progress when it was scored. Queue includes parked time."
    )
    return [Table("Slowest rollouts", ("<rollout", "step", *names), rows, caption)] if rows else []


def latency(summary: Summary) -> list[Table]:
    """Return each part's tails."""
    whole = summary["rl.latency.end_to_end_s"]
    if whole["mean"] is None:
        return []
    rows: list[tuple[str | Cell, ...]] = []
    parts = [key for key in summary if key.startswith("rl.latency.") and not key.endswith(".end_to_end_s")]
    for key in (*parts, "rl.latency.end_to_end_s"):
        tail = summary[key]
        share = tail["mean"] / whole["mean"] if whole["mean"] else None
        if share or key.endswith(".end_to_end_s"):
            cells = [seconds(tail[name]) for name in ("mean", "p50", "p90", "p99", "max")]
            rows.append((label_of(key.rpartition(".")[2]), percent(share), *cells))
    return [Table("Latency by part", ("<part", "share", "mean", "p50", "p90", "p99", "max"), rows)]


def discards(summary: Summary) -> list[Table]:
    """Return what was made and not trained, with what was trained beside it."""
    trained = {
        what: sum(count for fate, count in summary[key].items() if fate == "trained")
        for what, key in (("rollouts", "conservation.by_fate"), ("tokens", "conservation.tokens_by_fate"))
    }
    lines = [("trained", "", trained["rollouts"], trained["tokens"])]
    for fate in FATES:
        if fate not in KEPT and (rollouts := summary[f"rl.discard.{fate}.rollouts"]):
            label = fate.replace("_", " ")
            lines.append((label, _WHY.get(fate, ""), rollouts, summary[f"rl.discard.{fate}.tokens"]))
    if len(lines) == 1:
        return []
    most = max(line[2] for line in lines), max(line[3] for line in lines)
    rows: list[tuple[str | Cell, ...]] = [
        (
            label,
            Cell(f"{rollouts:,}", rollouts / most[0] if most[0] else None),
            Cell(f"{tokens:,}", tokens / most[1] if most[1] else None),
            why,
        )
        for label, why, rollouts, tokens in lines
    ]
    return [
        Table("Fates of train rollouts", ("<fate", "rollouts", "sampled tokens", "<meaning"), rows, wide=True)
    ]


def tasks(summary: Summary) -> list[Table]:
    """Return levels, sources and the environment's own measures."""
    found: list[Table] = []
    for title, first, key in (
        ("Levels", "<level", "rl.curriculum.levels"),
        ("Task sources", "<source", "rl.mix.settled"),
    ):
        if len(summary[key]) > 1:
            rows: list[tuple[str | Cell, ...]] = [
                (name, f"{row['groups']:,}", Cell(percent(row["solve_rate"]), row["solve_rate"]))
                for name, row in summary[key].items()
            ]
            found.append(Table(title, (first, "settled groups", "solved"), rows))
    own: list[tuple[str | Cell, ...]] = [
        (key.removeprefix(_REWARD), figures(value))
        for key, value in summary.items()
        if key.startswith(_REWARD)
    ]
    if own:
        found.append(Table("The environment's own measures", ("<measure", "mean"), own))
    return found


def changes(data: PageData) -> list[Table]:
    """Return the settings that changed, and what else the marks stand for."""
    rows: list[tuple[str | Cell, ...]] = [
        (
            change.key,
            _value(change.before),
            _value(change.after),
            str(change.step + 1),
            seconds(change.t),
            change.reason,
        )
        for change in data.changes
    ]
    columns = ("<setting", "<before", "<after", "from step", "at", "<why")
    if not any(change.reason for change in data.changes):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    tables = [Table("Settings changed during the run", columns, rows)] if rows else []
    events = [mark for mark in data.marks if mark.kind != "setting"]
    if events:
        shown: list[tuple[str | Cell, ...]] = [_event(mark) for mark in events[-MAX_ROWS:]]
        left = len(events) - len(shown)
        caption = f"The last {len(shown)}; {left} before them." if left else ""
        tables.append(
            Table("Alarms, rollbacks, resumes", ("<", "<what", "step", "at"), shown, caption, wide=True)
        )
    return tables


def warnings(summary: Summary) -> list[Table]:
    """Return each kind of warning once, with its number and its last text."""
    newest = {warning["code"]: warning for warning in summary["warnings"]}
    counts = Counter(warning["code"] for warning in summary["warnings"])
    rows: list[tuple[str | Cell, ...]] = [
        (code, warning["text"], f"{counts[code]:,}", seconds(warning["t"]))
        for code, warning in newest.items()
    ]
    return (
        [Table("Warnings", ("<code", "<last text", "times", "last at"), rows[:MAX_ROWS], wide=True)]
        if rows
        else []
    )


def settings(rows: list[SettingRow]) -> list[Table]:
    """Return the config, what differs from the defaults, or changed during the run, first."""
    some_changed = any(row.before is not None for row in rows)
    changed: list[tuple[str | Cell, ...]] = [
        (Cell(row.key, title=row.doc), row.value, row.default)
        + ((UNKNOWN if row.before is None else row.before,) if some_changed else ())
        for row in rows
        if row.differs or row.before is not None
    ]
    columns = ("<key", "<value", "<default", *(("<began with",) if some_changed else ()))
    rest: list[tuple[str | Cell, ...]] = [
        (Cell(row.key, title=row.doc), row.value) for row in rows if not row.differs and row.before is None
    ]
    tables = [Table("What differs from the defaults", columns, changed, wide=True)] if changed else []
    if rest:
        tables.append(Table(f"The other {len(rest)} settings", ("<key", "<value"), rest, folded=True))
    return tables


def versions(data: PageData) -> list[Table]:
    """Return what ran, and the model's shape."""
    header = data.header
    rows: list[tuple[str | Cell, ...]] = [
        ("headway", header.headway),
        ("code", header.code or UNKNOWN),
        ("began", header.created.replace("T", " ")),
        ("seed", str(header.seed)),
        ("journal schema", str(header.schema)),
    ]
    tables = [Table("Versions", ("<", "<"), rows)]
    if model := header.model:
        trained = "all" if header.lora_params is None else f"{header.lora_params:,} (LoRA)"
        facts: list[tuple[str | Cell, ...]] = [
            ("parameters", f"{model.num_params:,}"),
            ("trained", trained),
            ("layers", str(model.num_layers)),
            ("hidden", f"{model.hidden:,}"),
            ("heads (query / KV)", f"{model.num_heads} / {model.num_kv_heads} of {model.head_dim}"),
            ("vocabulary", f"{model.vocab:,}"),
            ("positions", f"{model.max_context_tokens:,}"),
            ("KV cache", f"{model.kv_bytes_per_token():,} bytes / token in float32"),
        ]
        tables.append(Table("Model", ("<", "<"), facts))
    return tables


def _event(mark: Mark) -> tuple[str, ...]:
    return f"{SYMBOLS[mark.kind]} {mark.kind}", mark.text, f"{int(mark.step):,}", seconds(mark.t)


def _value(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
