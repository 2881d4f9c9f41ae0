"""The headline: how the run ended, and the numbers that a person asks for first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.telemetry.page.parts import Tile
from headway.telemetry.text import number, percent, seconds

if TYPE_CHECKING:
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.told import Findings

Summary = Mapping[str, Any]
_BAD = ("failed", "no_signal", "guard", "all_stale")
STATES = {"running": ("running", "busy"), "killed": ("killed", "bad"), "unfinished": ("unfinished", "busy")}


def tiles(data: PageData, summary: Summary, state: str, findings: Findings | None = None) -> list[Tile]:
    """Return the tiles, without those that the run has no number for.

    Args:
        data: the run.
        summary: its metrics.
        state: of a run without an outcome: running, killed or unfinished.
        findings: with the field's typical ranges.
    """
    typical = dict(findings.typical) if findings is not None else {}
    found = [
        _outcome(summary, state),
        _progress(data, summary),
        _ends("Reward", summary, "reward"),
        _ends("Eval reward", summary, "eval"),
        _passed(summary),
        _waits(summary, typical),
        _rates(summary),
        _stale(data, summary),
        _discarded(summary),
        _cost(summary, typical),
    ]
    return [tile for tile in found if tile is not None]


def _outcome(summary: Summary, state: str) -> Tile:
    if summary["outcome"] == "unfinished":
        value, tone = STATES[state]
        note = {"running": "this page is a moment of it", "killed": "headway resume goes on"}.get(state, "")
        return Tile("Outcome", value, note, tone)
    bad = summary["failed"] or summary["outcome"] in _BAD
    return Tile("Outcome", summary["outcome"], summary["message"], "bad" if bad else "good")


def _progress(data: PageData, summary: Summary) -> Tile:
    limit = data.metrics.facts.stop_steps
    steps = f"{summary['steps']:,}" + (f" / {limit:,}" if limit else "")
    resumes = summary["num_resumes"]
    lives = f", {resumes} resume{'s' if resumes > 1 else ''}" if resumes else ""
    note = f"in {seconds(summary['wall_s'])}, {summary['num_rollouts']:,} train rollouts{lives}"
    return Tile("Steps", steps, note)


def _ends(label: str, summary: Summary, name: str) -> Tile | None:
    first, last = summary[f"{name}.first"], summary[f"{name}.last"]
    if last is None:
        return None
    if name == "eval" and summary["rl.eval.num_evaluations"] < 2:
        return Tile(label, number(last, 3), "one evaluation")
    return Tile(label, number(last, 3), f"from {number(first, 3)} ({last - first:+.3f})")


def _passed(summary: Summary) -> Tile | None:
    if summary["rl.eval.pass_at.1"] is not None:
        n = summary["rl.eval.points"][-1]["n"]
        note = f"pass@{n} {percent(summary['rl.eval.pass_at.n'])}, " if n > 1 else ""
        return Tile("Eval pass@1", percent(summary["rl.eval.pass_at.1"]), f"{note}last evaluation")
    if summary["rl.pass_at.1"] is None:
        return None
    note = f"pass@n {percent(summary['rl.pass_at.n'])}, whole run"
    return Tile("Train pass@1", percent(summary["rl.pass_at.1"]), note)


def _waits(summary: Summary, typical: Mapping[str, str]) -> Tile | None:
    wait = summary["rl.trainer.wait_fraction"]
    if wait is None:
        return None
    note = f"computes {percent(summary['rl.trainer.compute_fraction'])}, publishes "
    note += percent(summary["rl.trainer.publish_fraction"]) + _field(typical, "rl.trainer.wait_fraction")
    return Tile("Trainer waits", percent(wait), note)


def _field(typical: Mapping[str, str], metric: str) -> str:
    return f"; the field: {typical[metric]}" if metric in typical else ""


def _rates(summary: Summary) -> Tile | None:
    made, used = summary["rl.production.samples_per_s"], summary["rl.consumption.active_samples_per_s"]
    if not made or not used:
        return None
    faster = "the generator is faster" if made > used else "the trainer is faster"
    return Tile("Made / used", number(made / used, 2), f"{_rate(made)} / {_rate(used)} rollouts/s: {faster}")


def _rate(value: float) -> str:
    return number(value, 2 if value < 10 else 1 if value < 100 else 0)


def _stale(data: PageData, summary: Summary) -> Tile | None:
    tokens = summary["rl.staleness.token"]
    if tokens["mean"] is None:
        return None
    bound = data.metrics.facts.bound
    limit = "" if bound is None else f", bound {bound}"
    return Tile(
        "Staleness", number(tokens["mean"], 2), f"steps, mean of tokens; oldest {tokens['max']}{limit}"
    )


def _discarded(summary: Summary) -> Tile | None:
    share = summary["rl.discard.rollout_fraction"]
    if share is None:
        return None
    return Tile(
        "Not trained",
        percent(share),
        f"of rollouts; {percent(summary['rl.discard.token_fraction'])} of tokens",
    )


def _cost(summary: Summary, typical: Mapping[str, str]) -> Tile | None:
    usd, mtok = summary["rl.cost.usd"], summary["rl.cost.usd_per_mtok"]
    if usd is None:
        return None
    return Tile(
        "Cost",
        f"${usd:,.2f}",
        "" if mtok is None else f"${mtok:,.2f} / Mtok trained" + _field(typical, "rl.cost.usd_per_mtok"),
    )
