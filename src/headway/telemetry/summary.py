"""The summary's keys: the project's metric names, each with its value or None.

Units are in the names. Shares and rates are over the training window (see `window`). Distributions are
{mean, p50, p90, p99, max} over scored train rollouts. The keys under rl.reward are those that the environment
measured, the keys under rl.loss those that the trainer did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headway.core.facts import MFU_CONVENTION
from headway.telemetry.oversampling import oversampling_of
from headway.telemetry.tails import course, histogram, ratio

if TYPE_CHECKING:
    from headway.telemetry.metrics import RunMetrics

COST_DENOMINATOR = "tokens that the loss counted, in surviving steps"


def summary_of(metrics: RunMetrics) -> dict[str, Any]:
    """Return every metric of a run."""
    return {
        **_run(metrics),
        **_rates(metrics),
        **_staleness(metrics),
        **metrics.ledger.discards(),
        **metrics.pruning.summary(metrics.tokens.summary()["mean"]),
        **metrics.partial.summary(),
        **oversampling_of(metrics.ledger.train_lines()),
        **metrics.groups.summary(),
        **metrics.tasks.summary(),
        **_rollouts(metrics),
        **_reward_metrics(metrics),
        **_loss(metrics),
        **_evaluation(metrics),
        **_cost(metrics),
        **metrics.driver.summary(metrics.now),
        **metrics.disk.summary(),
        **metrics.ledger.conservation(finished=metrics.outcome != "unfinished"),
        "warnings": metrics.warnings,
    }


def _run(metrics: RunMetrics) -> dict[str, Any]:
    first, last = metrics.steps.reward_ends()
    return {
        "outcome": metrics.outcome,
        "message": metrics.message,
        "failed": metrics.failed,
        "mode": metrics.facts.mode,
        "simulated": metrics.facts.simulated,
        "steps": metrics.steps.steps_ended,
        "wall_s": metrics.now,
        "num_rollouts": metrics.num_rollouts,
        "num_resumes": metrics.num_resumes,
        "num_rollbacks": metrics.num_rollbacks,
        "settings_changed": metrics.settings_changed,
        **_control(metrics),
        "reward.first": first,
        "reward.last": last,
    }


def _control(metrics: RunMetrics) -> dict[str, Any]:
    """Return how often the controller changed what, and what each of those settings is now."""
    changed = [change for change in metrics.settings_changed if change["by"] == "control"]
    counts: dict[str, int] = {}
    for change in changed:
        counts[change["key"]] = counts.get(change["key"], 0) + 1
    now = {change["key"]: change["value"] for change in metrics.settings_changed if change["key"] in counts}
    return {"rl.control.decisions": len(changed), "rl.control.changes": counts, "rl.control.values": now}


def _rates(metrics: RunMetrics) -> dict[str, Any]:
    window, records = metrics.window, metrics.steps.records
    window_s, shares, acceptance = window.seconds(), window.shares(), metrics.groups.acceptance()
    production = ratio(window.num_finished(), window_s)
    num_trained = sum(record.num_trained_rollouts for record in records)
    flops = metrics.lost_flops + sum(record.flops or 0.0 for record in records)
    rate = ratio(flops, window.compute_s) if metrics.facts.model is not None else None
    peak = metrics.facts.peak_flops_per_s
    return {
        "window_s": window_s,
        "rl.production.samples_per_s": production,
        "rl.production.effective_samples_per_s": None
        if production is None or acceptance is None
        else production * acceptance,
        "rl.production.acceptance_fraction": acceptance,
        "rl.consumption.active_samples_per_s": ratio(
            num_trained, sum(record.compute_s for record in records)
        ),
        "rl.consumption.wall_samples_per_s": ratio(num_trained, window_s),
        "rl.trainer.wait_fraction": shares["wait"],
        "rl.trainer.compute_fraction": shares["compute"],
        "rl.trainer.publish_fraction": shares["publish"],
        "rl.trainer.checkpoint_fraction": shares["checkpoint"],
        "rl.trainer.streamed_fraction": ratio(window.gathered_s, window.compute_s),
        "rl.trainer.flops_per_s": rate,
        "rl.trainer.mfu": None if rate is None or peak is None else rate / peak,
        "rl.trainer.mfu_convention": f"{MFU_CONVENTION}; over the trainer's computing time",
        "rl.trainer.lost_compute_s": metrics.lost_compute_s,
        "rl.queue.depth.all": metrics.depth.all.summary(),
        "rl.queue.depth.signal": metrics.depth.signal.summary(),
        "rl.queue.refills": metrics.num_refills,
        "rl.concurrency.limit": metrics.concurrency.summary(),
        "rl.generator.preemptions": sum(metrics.preemptions.values()),
        "rl.concurrency.hard_trims": metrics.num_hard_trims,
        "rl.guard.alarms": dict(sorted(metrics.guard_alarms.items())),
    }


def _staleness(metrics: RunMetrics) -> dict[str, Any]:
    trajectory: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for record in metrics.steps.records:
        trajectory.update(record.trajectory_staleness)
        tokens.update(record.token_staleness)
    return {
        "rl.staleness.trajectory": histogram(trajectory),
        "rl.staleness.token": histogram(tokens),
        "rl.staleness.environment": histogram(metrics.environment_staleness),
    }


def _rollouts(metrics: RunMetrics) -> dict[str, Any]:
    return {
        "rl.pass_at.1": ratio(metrics.num_solved, metrics.num_rollouts),
        **{f"rl.latency.{name}": tails.summary() for name, tails in metrics.latency.items()},
        "rl.latency.end_to_end_s": metrics.end_to_end.summary(),
        "rl.rollout.tokens": metrics.tokens.summary(),
        "rl.rollout.turns": metrics.turns.summary(),
        "rl.rollout.tool_calls": metrics.tool_calls.summary(),
        "rl.rollout.truncated_fraction": ratio(metrics.num_truncated, metrics.num_rollouts),
        "rl.rollout.failed_attempts": dict(sorted(metrics.failed_attempts.items())),
        **metrics.sandboxes.summary(),
        "rl.weights.publish_s": metrics.publish_s.summary(),
        "rl.weights.pause_s": metrics.pause_s.summary(),
        "rl.weights.superseded": metrics.num_superseded,
    }


def _reward_metrics(metrics: RunMetrics) -> dict[str, Any]:
    return {f"rl.reward.{name}": mean.value for name, mean in sorted(metrics.reward_metrics.items())}


def _loss(metrics: RunMetrics) -> dict[str, Any]:
    values: dict[str, list[float]] = {}
    for record in metrics.steps.records:
        for name, value in record.metrics.items():
            values.setdefault(name, []).append(value)
    return {f"rl.loss.{name}": course(series) for name, series in sorted(values.items())}


def _evaluation(metrics: RunMetrics) -> dict[str, Any]:
    points = metrics.steps.evals
    rewards = [point.reward for point in points if point.reward is not None]
    return {
        "eval.first": rewards[0] if rewards else None,
        "eval.last": rewards[-1] if rewards else None,
        "rl.eval.num_evaluations": len(points),
        "rl.eval.num_rollouts": sum(point.num_rollouts for point in points),
        "rl.eval.num_failed": sum(point.num_failed for point in points),
        "rl.eval.pass_at.1": points[-1].pass_at_1 if points else None,
        "rl.eval.pass_at.n": points[-1].pass_at_n if points else None,
        "rl.eval.points": [asdict(point) for point in points],
    }


def _cost(metrics: RunMetrics) -> dict[str, Any]:
    tokens = sum(record.num_trained_tokens for record in metrics.steps.records)
    price = metrics.facts.usd_per_hour
    usd = None if price is None else price * metrics.now / 3600.0
    return {
        "rl.cost.usd": usd,
        "rl.cost.usd_per_mtok": None if usd is None else ratio(usd * 1e6, tokens),
        "rl.cost.denominator": COST_DENOMINATOR,
        "rl.cost.trained_tokens": tokens,
    }
