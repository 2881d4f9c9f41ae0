"""Which plots and tables stand where. A section without content is left out of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headway.telemetry.page import flow, learning, matching, rollouts, sandboxes, tables, trainer
from headway.telemetry.page.parts import Plot, Section, SettingRow
from headway.telemetry.report_tasks import acceptance_line, oversampling_lines, task_lines
from headway.telemetry.text import number, percent

if TYPE_CHECKING:
    from headway.telemetry.page.axes import Axes
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.told import Findings

Summary = Mapping[str, Any]
_IN_TABLES = ("levels:", "sources:")  # lines that say what a table shows


def sections(
    data: PageData,
    summary: Summary,
    axes: Axes,
    settings: list[SettingRow],
    findings: Findings | None = None,
) -> tuple[list[Section], list[Section]]:
    """Return the sections before and after the transcripts, without those that have no content."""
    learned, flowed = learning.plots(data, axes), flow.rates(data, axes)
    old, long, taught = (
        flow.staleness(data, axes, dict(summary)),
        rollouts.lengths(data, axes),
        trainer.loss(data, axes),
    )
    task_notes = [line for line in task_lines(summary) if not line.startswith(_IN_TABLES)]
    slowest = [*tables.latency(summary), *tables.slowest_rollouts(data)]
    entering = [*oversampling_lines(summary), *acceptance_line(summary)]
    matched = _balanced(matching.plots(data, axes, summary), "")
    before = [
        Section("matching", "Matching", matched, findings=findings),
        Section(
            "learning", "Learning", _balanced(learned, "reward-steps"), tables.tasks(summary), task_notes
        ),
        Section("flow", "Generator and trainer", _balanced(flowed, "")),
        Section("staleness", "Staleness", _balanced(old, "staleness")),
        Section("lengths", "Lengths and tool calls", _balanced(long, "truncated")),
        Section("time", "Where time went", rollouts.latency(data), slowest, _time_lines(summary)),
        Section("sandboxes", "Sandboxes", [], sandboxes.tables(summary), sandboxes.lines(summary)),
        Section("discards", "Discards", [], tables.discards(summary), entering),
        Section("trainer", "Trainer", _balanced(taught, ""), [], _trainer_lines(summary)),
        Section("cost", "Cost", trainer.cost(data, axes)),
        Section("changes", "Changes and alarms", [], tables.changes(data)),
        Section("warnings", "Warnings", [], tables.warnings(summary)),
    ]
    after = [
        Section("config", "Config", [], tables.settings(settings)),
        Section("versions", "Versions and model", [], tables.versions(data)),
    ]
    return [s for s in before if not s.is_empty], [s for s in after if not s.is_empty]


def _balanced(plots: list[Plot], first_choice: str) -> list[Plot]:
    """Leave no gap beside the last plot of an odd number: the chosen one, or the last, takes both columns."""
    if sum(not plot.wide for plot in plots) % 2 == 0:
        return plots
    widened = first_choice if any(plot.id == first_choice for plot in plots) else plots[-1].id
    return [replace(plot, wide=True) if plot.id == widened else plot for plot in plots]


def _time_lines(summary: Summary) -> list[str]:
    straggler = summary["rl.group.straggler_ratio"]
    lines: list[str] = []
    if straggler["mean"] is not None:
        lines.append(
            f"The slowest rollout of a group takes {number(straggler['mean'], 2)} times the group's mean on "
            f"average (p90 {number(straggler['p90'], 2)}, at most {number(straggler['max'], 2)})."
        )
    return lines


def _trainer_lines(summary: Summary) -> list[str]:
    flops, mfu = summary["rl.trainer.flops_per_s"], summary["rl.trainer.mfu"]
    lines: list[str] = []
    if flops:
        share = "" if mfu is None else f", MFU {percent(mfu, 1)}"
        lines.append(f"{flops / 1e9:,.1f} GFLOP/s{share} ({summary['rl.trainer.mfu_convention']}).")
    skipped = summary.get("rl.loss.nonfinite")
    if skipped and skipped["mean"]:
        lines.append(f"{percent(skipped['mean'], 1)} of the steps were skipped: not finite.")
    if summary["rl.trainer.lost_compute_s"]:
        lost = number(summary["rl.trainer.lost_compute_s"], 1)
        lines.append(
            f"Steps that a resume or a rollback took back had computed for {lost} s; no curve shows them."
        )
    return lines
