"""The report of a run, for people and for programs, from its summary and series alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console, RenderableType
from rich.text import Text

from headway.core.storage import size
from headway.telemetry.disk import KINDS
from headway.telemetry.driver import OVERHEAD_TARGET
from headway.telemetry.ledger import FATES, KEPT
from headway.telemetry.mismatch import LARGE, REMEDY
from headway.telemetry.pruning import SOURCES
from headway.telemetry.report_findings import section as findings_section
from headway.telemetry.report_sandboxes import section as sandbox_section
from headway.telemetry.report_table import plain_table
from headway.telemetry.report_tasks import acceptance_line, oversampling_lines, task_lines
from headway.telemetry.text import UNKNOWN, figures, flop_rate, number, percent, seconds, sparkline
from headway.telemetry.visible import harmless

if TYPE_CHECKING:
    from headway.telemetry.told import Findings

WIDTH = 100
Summary = Mapping[str, Any]
_PARTS = ("queue", "parked", "sandbox_start", "prefill", "decode", "tool", "score")
_TAIL = ("mean", "p50", "p90", "p99", "max")
_COURSE = ("first", "last", "mean", "max")
_REWARD = "rl.reward."
_WATCHED = (
    ("loss", "loss"),
    ("gradient norm", "grad_norm"),
    ("clipped share", "clip_fraction"),
    ("KL (sampled, trained), nats", "mismatch_kl"),
    ("entropy, nats", "entropy"),
)
_WHERE_ANY = (  # shown where some step has one that is not 0
    ("masked share", "mask_fraction"),
    ("correction's weight", "correction_mean"),
    ("largest ratio", "ratio_max"),
)
_MEANING = {
    "filtered": " (no signal)",
    "voided": " (with their group)",
    "stopped": " (in flight at the end)",
    "unused": " (left over at the end)",
}
_ENDS = "(reward: train rollouts of the first and the last tenth of the steps; eval: held-out tasks)"


DRIVER_REMEDY = (
    "it follows the number of turns and tool calls, so that short rollouts cost most: longer answers, larger "
    "queue.batch_size, or one core more for it"
)


def report_json(summary: Summary) -> str:
    """Return the summary as one JSON object; a number that is not finite becomes null."""
    return json.dumps(_finite(dict(summary)), allow_nan=False, indent=2)


def report_text(
    summary: Summary, series: Sequence[Mapping[str, Any]], findings: Findings | None = None
) -> str:
    """Return the report as plain text. Works on unfinished runs and on runs without a step.

    Args:
        summary: every metric.
        series: of the steps.
        findings: what costs the run time, where somebody looked.
    """
    summary = cast("Summary", harmless(dict(summary)))  # environments name measures, and faults have texts
    console = Console(file=StringIO(), width=WIDTH, color_system=None, force_terminal=False, highlight=False)
    sections: list[tuple[str, list[RenderableType]]] = [
        ("Outcome", _outcome(summary)),
        ("Learning", _learning(summary, series)),
        ("Rates", _rates(summary)),
        ("Findings", findings_section(findings)),
        ("Trainer", _trainer(summary)),
        ("Where a rollout's time went", _latency(summary)),
        ("Sandboxes", sandbox_section(summary)),
        ("Staleness of what was trained", _staleness(summary)),
        ("Parked and resumed rollouts", _partial(summary)),
        ("Tasks", [Text(line) for line in task_lines(summary)]),
        ("Discarded", _discards(summary)),
        ("Evaluation", _evaluation(summary)),
        ("Driver", _driver(summary)),
        ("Disk", _disk(summary)),
        ("Settings that changed", _changes(summary)),
        ("Warnings", _warnings(summary)),
    ]
    for title, parts in sections:
        if parts:
            console.print(Text(title), Text("-" * len(title)), *parts, "", sep="\n")
    out = cast("StringIO", console.file).getvalue()
    return "\n".join(line.rstrip() for line in out.rstrip().splitlines()) + "\n"


def _outcome(summary: Summary) -> list[RenderableType]:
    outcome, message = summary["outcome"], summary["message"]
    first = f"{outcome}: {message}" if message else str(outcome)
    mode = f", {summary['mode']}" if summary["mode"] else ""
    lines = [
        first,
        f"{summary['steps']:,} steps, {summary['num_rollouts']:,} finished train rollouts, "
        f"{seconds(summary['wall_s'])}{mode}",
    ]
    if summary["simulated"]:
        lines.append("simulated: times are virtual, and no model ran")
    if summary["num_rollbacks"]:
        lost = seconds(summary["rl.trainer.lost_compute_s"])
        lines.append(
            f"rolled back {summary['num_rollbacks']} times; steps lost in all had computed for {lost}"
        )
    if summary["num_resumes"]:
        lost = seconds(summary["rl.trainer.lost_compute_s"])
        lines.append(f"resumed {summary['num_resumes']} times; steps that were lost had computed for {lost}")
    if not summary["conservation.ok"]:
        lines.append(
            "WARNING: the ledger of rollouts does not add up: "
            f"{summary['conservation.open']} of {summary['conservation.started']} are open, "
            f"{summary['conservation.settled_twice']} settled twice"
        )
    if alarms := summary["rl.guard.alarms"]:
        what = ", ".join(f"{metric} {count}" for metric, count in alarms.items())
        lines.append(f"the guard raised {sum(alarms.values())} alarms ({what}); see the warnings")
    usd = summary["rl.cost.usd"]
    if usd is not None:
        mtok = number(summary["rl.cost.usd_per_mtok"], 2)
        lines.append(f"${usd:.2f} in all, ${mtok} per million {summary['rl.cost.denominator']}")
    return [Text(line) for line in lines]


def _learning(summary: Summary, series: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    table = plain_table("mean of", "first", "last", "change")
    for name in ("reward", "eval"):
        first, last = summary[f"{name}.first"], summary[f"{name}.last"]
        single = name == "eval" and summary["rl.eval.num_evaluations"] < 2  # nothing to compare it with
        change = UNKNOWN if first is None or last is None or single else f"{last - first:+.3f}"
        table.add_row(name, number(first, 3), number(last, 3), change)
    parts: list[RenderableType] = [table, Text(_ENDS)]
    curve = sparkline([step["reward"] for step in series])
    if curve:
        parts.append(Text(f"reward over the steps  {curve}"))
    text = (
        f"over all train rollouts: pass@1 {percent(summary['rl.pass_at.1'])}, "
        f"pass@n {percent(summary['rl.pass_at.n'])}; groups without signal "
        f"{percent(summary['rl.group.zero_advantage_fraction'])}, all solved "
        f"{percent(summary['rl.group.all_solved_fraction'])}, none solved "
        f"{percent(summary['rl.group.all_failed_fraction'])}"
    )
    parts.append(Text(text))
    lengths = plain_table("a rollout's", *_TAIL)
    for label, key in (("tokens", "tokens"), ("turns", "turns"), ("tool calls", "tool_calls")):
        tail = summary[f"rl.rollout.{key}"]
        lengths.add_row(label, *(number(tail[part], 1) for part in _TAIL))
    truncated = percent(summary["rl.rollout.truncated_fraction"], 1)
    parts += [lengths, Text(f"cut off by a length limit: {truncated}")]
    measured = {key.removeprefix(_REWARD): value for key, value in summary.items() if key.startswith(_REWARD)}
    if measured:
        means = ", ".join(f"{name} {figures(value)}" for name, value in measured.items())
        parts.append(Text(f"the environment's own measures, means: {means}"))
    return parts


def _rates(summary: Summary) -> list[RenderableType]:
    wait = summary["rl.trainer.wait_fraction"]
    made, used = summary["rl.production.samples_per_s"], summary["rl.consumption.active_samples_per_s"]
    if wait is None:
        return [Text("no training yet")]
    accepted = number(summary["rl.production.effective_samples_per_s"], 2)
    lines = [
        f"The trainer waits {percent(wait)} of the time (saves checkpoints: "
        f"{percent(summary['rl.trainer.checkpoint_fraction'])}), computes "
        f"{percent(summary['rl.trainer.compute_fraction'])} and publishes "
        f"{percent(summary['rl.trainer.publish_fraction'])}.",
        f"Rollouts a second: {number(made, 2)} made ({accepted} accepted), {number(used, 2)} used while it "
        f"computes, {number(summary['rl.consumption.wall_samples_per_s'], 2)} used in all.",
    ]
    if streamed := summary["rl.trainer.streamed_fraction"]:
        lines.append(f"Of its computing {percent(streamed)} was done before a batch was complete.")
    every, signal = summary["rl.queue.depth.all"], summary["rl.queue.depth.signal"]
    lines.append(
        f"Groups on their way: {number(every['mean'], 1)} (at most {number(every['max'], 0)}); waiting with "
        f"signal: {number(signal['mean'], 1)} (at most {number(signal['max'], 0)})."
    )
    limit = summary["rl.concurrency.limit"]
    if limit["mean"] is not None:
        lines.append(
            f"Rollouts that might be in flight: {number(limit['mean'], 1)} (at most "
            f"{number(limit['max'], 0)}); hard trims: {summary['rl.concurrency.hard_trims']}."
        )
    return [Text(line) for line in lines]


def _trainer(summary: Summary) -> list[RenderableType]:
    table = plain_table("a step's", *_COURSE)
    for label, name in (*_WATCHED, *_WHERE_ANY):
        course = summary.get(f"rl.loss.{name}")
        if course is not None and ((label, name) in _WATCHED or course["max"]):
            table.add_row(label, *(figures(course[part]) for part in _COURSE))
    parts: list[RenderableType] = [table] if table.row_count else []
    mean, most = summary.get("rl.loss.mismatch_mean"), summary.get("rl.loss.mismatch_max")
    if mean is not None and most is not None:
        text = (
            f"log-probs of generator and trainer, on tokens of the newest version, differ by "
            f"{figures(mean['mean'])} nats on average, at most {figures(most['max'])}"
        )
        parts.append(Text(text))
        if mean["max"] > LARGE:
            parts.append(Text(f"that is much, up to {figures(mean['max'])} in a step's mean: {REMEDY}"))
    skipped = summary.get("rl.loss.nonfinite")
    if skipped is not None and skipped["mean"]:
        parts.append(Text(f"{percent(skipped['mean'], 1)} of the steps were skipped: not finite"))
    flops, mfu = summary["rl.trainer.flops_per_s"], summary["rl.trainer.mfu"]
    if flops is not None:
        share = "" if mfu is None else f", MFU {percent(mfu, 1)}"
        parts.append(Text(f"{flop_rate(flops)}{share} ({summary['rl.trainer.mfu_convention']})"))
    return parts


def _latency(summary: Summary) -> list[RenderableType]:
    whole = summary["rl.latency.end_to_end_s"]
    if whole["mean"] is None:
        return [Text("no rollout finished yet")]
    table = plain_table("part", "share", *_TAIL)
    for part in _PARTS:
        tail = summary[f"rl.latency.{part}_s"]
        share = tail["mean"] / whole["mean"] if whole["mean"] else None
        table.add_row(part.replace("_", " "), percent(share), *(seconds(tail[name]) for name in _TAIL))
    table.add_row("end to end", percent(1.0), *(seconds(whole[name]) for name in _TAIL))
    straggler = summary["rl.group.straggler_ratio"]
    parts: list[RenderableType] = [table]
    if straggler["mean"] is not None:
        parts.append(
            Text(
                f"slowest rollout of a group over the group's mean: {number(straggler['mean'], 2)} on "
                f"average, p90 {number(straggler['p90'], 2)}, at most {number(straggler['max'], 2)}"
            )
        )
    if summary["rl.generator.preemptions"]:
        parts.append(
            Text(
                f"running requests gave way {summary['rl.generator.preemptions']:,} times and were computed "
                "anew: raise generator.kv_cache_mb, or lower generator.max_running"
            )
        )
    return parts


def _staleness(summary: Summary) -> list[RenderableType]:
    rows = [
        ("rollouts, from their start", summary["rl.staleness.trajectory"]),
        ("tokens, each its own", summary["rl.staleness.token"]),
        ("environment state", summary["rl.staleness.environment"]),
    ]
    if all(not data["counts"] for _, data in rows):
        return []
    table = plain_table("steps old", "mean", "max", "shares")
    for label, data in rows:
        if not data["counts"]:
            continue
        total = sum(data["counts"].values())
        shares = "  ".join(f"{age}: {percent(count / total)}" for age, count in data["counts"].items())
        table.add_row(label, number(data["mean"], 2), number(data["max"], 0), shares or UNKNOWN)
    return [table]


def _discards(summary: Summary) -> list[RenderableType]:
    reasons = [f for f in FATES if f not in KEPT and summary[f"rl.discard.{f}.rollouts"]]
    if not reasons:
        return [Text("nothing"), *_pruned(summary)]
    more = [Text(line) for line in (*oversampling_lines(summary), *acceptance_line(summary))]
    table = plain_table("reason", "rollouts", "tokens")
    for reason in reasons:
        rollouts, tokens = (summary[f"rl.discard.{reason}.{what}"] for what in ("rollouts", "tokens"))
        label = reason.replace("_", " ") + _MEANING.get(reason, "")
        table.add_row(label, f"{rollouts:,}", f"{tokens:,}")
    shares = (
        f"{percent(summary['rl.discard.rollout_fraction'])} of the settled train rollouts, "
        f"{percent(summary['rl.discard.token_fraction'])} of their sampled tokens"
    )
    return [table, Text(shares), *more, *_pruned(summary)]


def _partial(summary: Summary) -> list[RenderableType]:
    if not summary["rl.partial.num_parked"] + summary["rl.partial.num_engine_lost"]:
        return []
    count = {
        name: summary[f"rl.partial.num_{name}"]
        for name in ("parked", "engine_lost", "resumed", "crossed", "given_up", "still_parked")
    }
    ends = [f"{count['resumed']:,} times resumed"]
    ends += [f"{count['crossed']:,} times it ended by itself meanwhile"] if count["crossed"] else []
    ends += [f"{count['given_up']:,} times given up or begun anew"] if count["given_up"] else []
    ends += [f"{count['still_parked']:,} still parked at the end"] if count["still_parked"] else []
    lost = f", {count['engine_lost']:,} times because the engine was lost" if count["engine_lost"] else ""
    lines = [
        f"a rollout was parked {count['parked'] + count['engine_lost']:,} times{lost}: {', '.join(ends)}",
        f"{summary['rl.partial.recomputed_tokens']:,} tokens of context were computed anew; at most "
        f"{number(summary['rl.partial.parked']['max'], 0)} were parked at once",
    ]
    if summary["rl.partial.masked_tokens"]:
        lines.append(f"{summary['rl.partial.masked_tokens']:,} sampled tokens were not trained for their age")
    outcomes = summary["rl.partial.outcomes"]
    buckets = list(dict.fromkeys([*outcomes["fresh"], *outcomes["resumed"]]))
    if not any(bucket != "0" for bucket in buckets) and not summary["rl.rollout.tool_calls"]["max"]:
        return [Text(line) for line in lines]  # none acted on a sandbox
    table = plain_table("age of the sandbox's state", "fresh", "mean reward", "resumed", "mean reward")
    for bucket in buckets:
        cells: list[str] = []
        for kind in ("fresh", "resumed"):
            found = outcomes[kind].get(bucket)
            cells += (
                [f"{found['num_rollouts']:,}", number(found["mean_reward"], 3)] if found else ["0", UNKNOWN]
            )
        table.add_row(bucket, *cells)
    return [*(Text(line) for line in lines), table]


def _pruned(summary: Summary) -> list[RenderableType]:
    counts = {source: summary[f"rl.prune.{source}.rollouts"] for source in SOURCES}
    lines: list[str] = []
    if any(counts.values()):
        what = ", ".join(f"{source} {count}" for source, count in counts.items() if count)
        lines.append(
            f"pruned by {what}; they had sampled {number(summary['rl.prune.length_ratio'], 2)} times the "
            "tokens of a finished rollout when they were ended"
        )
    if summary["rl.prune.audited"]:
        lines.append(
            f"of {summary['rl.prune.audited']} audited rollouts that would have been pruned, "
            f"{percent(summary['rl.prune.wrong_fraction'])} ended above their group's mean and "
            f"{percent(summary['rl.prune.audited_solved_fraction'])} were solved"
        )
    return [Text(line) for line in lines]


def _evaluation(summary: Summary) -> list[RenderableType]:
    points = summary["rl.eval.points"]
    if not points:
        return []
    several = points[-1]["n"] > 1
    titles = [f"pass@{points[-1]['n']}"] if several else []
    table = plain_table("version", "time", "reward", "pass@1", *titles, "rollouts")
    for point in points:
        cells = [seconds(point["t"]), number(point["reward"], 3), percent(point["pass_at_1"])]
        cells += [percent(point["pass_at_n"])] if several else []
        table.add_row(str(point["step"]), *cells, str(point["num_rollouts"]))
    failed = summary["rl.eval.num_failed"]
    return [table, Text(f"{failed} rollouts failed and are not counted")] if failed else [table]


def _driver(summary: Summary) -> list[RenderableType]:
    share = summary["rl.driver.overhead_fraction"]
    if share is None:
        return [Text("not measured")]
    verdict = "within" if share <= OVERHEAD_TARGET else "ABOVE"
    return [
        Text(
            f"driver {percent(share, 1)} of wall time in CPU seconds, {verdict} the target of "
            f"{percent(OVERHEAD_TARGET)}: scheduler {seconds(summary['rl.driver.scheduler_s'])}, "
            f"journal {seconds(summary['rl.driver.journal_s'])}"
        ),
        *([Text(DRIVER_REMEDY)] if share > OVERHEAD_TARGET else []),
    ]


def _disk(summary: Summary) -> list[RenderableType]:
    """One line, wrapped: what the run takes, how it grows, and for how long there is room."""
    sizes = {kind: summary[f"rl.disk.{kind}_bytes"] for kind in KINDS}
    if any(num_bytes is None for num_bytes in sizes.values()):
        return [Text("not measured")]
    parts = ", ".join(f"{kind} {size(num_bytes)}" for kind, num_bytes in sizes.items())
    line = f"{size(sum(sizes.values()))} ({parts})"
    if (growth := summary["rl.disk.growth_bytes_per_step"]) is not None:
        line += f"; payloads and journal grow {size(growth)} a step"
    line += f"; {size(summary['rl.disk.free_bytes'])} free"
    if (steps := summary["rl.disk.steps_until_full"]) is not None:
        line += f", room for {figures(steps) if steps < 1000 else format(round(steps), ',')} steps"
    return [Text(line)]


def _changes(summary: Summary) -> list[RenderableType]:
    return [
        Text(
            f"{change['key']} = {json.dumps(change['value'])} from step {change['step'] + 1} on"
            + _why(change)
        )
        for change in summary["settings_changed"]
    ]


def _why(change: dict[str, Any]) -> str:
    return f" (control: {change['reason']})" if change["by"] == "control" else ""


def _warnings(summary: Summary) -> list[RenderableType]:
    warnings = summary["warnings"]
    counts = Counter(warning["code"] for warning in warnings)
    newest = {warning["code"]: warning for warning in warnings}
    lines: list[RenderableType] = []
    for code, count in counts.items():
        times = f" ({count} times; the last:)" if count > 1 else ""
        warning = newest[code]
        lines.append(Text(f"{code}{times} at {seconds(warning['t'])}: {warning['text']}"))
    return lines


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in cast("list[Any]", value)]
    return value
