"""A plan in words: the answer first, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway.matching.optimise import Option
    from headway.matching.plan import Plan
    from headway.matching.sensitivity import Change
    from headway.matching.spec_load import Spec


def plan_text(spec: Spec, plan: Plan, changes: Sequence[Change]) -> str:
    """Return a plan as lines of text."""
    return "\n".join(_lines(spec, plan, changes))


def _lines(spec: Spec, plan: Plan, changes: Sequence[Change]) -> Iterator[str]:
    m = plan.metrics
    wall, wait = m["rl.consumption.wall_samples_per_s"], m["rl.trainer.wait_fraction"]
    step = seconds(m["plan.step_s"])
    yield f"{spec.name}: {wall:.3g} samples/s trained, a step each {step}; the trainer waits {wait:.0%}"
    yield f"bottleneck: {plan.bottleneck.name}: {plan.bottleneck.why}"
    yield f"            {plan.bottleneck.remedy}"
    yield ""
    yield from _rates(spec, plan)
    yield ""
    yield from _where(spec, plan)
    if plan.course:
        yield ""
        yield "as behaviour drifts (steps, samples/s trained, wait, no signal, prefill share, step time)"
        for at in plan.course:
            shares = f"{at.wait:>4.0%}  {at.zero:>4.0%}  {at.prefill_fraction:>4.0%}"
            yield f"  {at.step:>6}  {at.wall:>8.3g}  {shares}  {seconds(at.step_s)}"
    if changes:
        yield ""
        yield "what changes would do (samples/s trained, wait, mean staleness, $ per token)"
        for change in changes:
            usd = "" if change.usd is None else f"  {change.usd:+.0%}"
            after = f"{change.samples:+5.0%}  {change.wait:>4.0%}  {change.staleness:>4.1f}{usd}"
            yield f"  {change.words:<52} {after}"
    for note in plan.notes:
        yield f"note: {note}"
    yield ""
    yield f"by {plan.by}; MFU convention: {m['rl.trainer.mfu_convention']}"


def _rates(spec: Spec, plan: Plan) -> Iterator[str]:
    m, flow = plan.metrics, plan.flow
    yield "production"
    yield (
        f"  {m['rl.production.samples_per_s']:.3g} samples/s scored, "
        f"{m['rl.production.effective_samples_per_s']:.3g} of them trained; admission holds back "
        f"{m['plan.blocked_fraction']:.0%}"
    )
    lost = {
        "no signal": m["plan.discard.filtered_fraction"],
        "too old": m["plan.discard.stale_fraction"],
        "oversampled": m["plan.discard.cancelled_fraction"],
        "failed": m["plan.discard.failed_fraction"],
    }
    parts = ", ".join(f"{share:.0%} {name}" for name, share in lost.items() if share > 0.0005)
    yield f"  {m['rl.discard.rollout_fraction']:.0%} of the rollouts are discarded" + (
        f": {parts}" if parts else ""
    )
    yield (
        f"  {m['plan.concurrency.in_flight']:,.0f} rollouts in flight, capped by "
        f"{m['plan.concurrency.capped_by']}; "
        f"{m['plan.concurrency.running_per_replica']:.1f} decode on each of {spec.replicas} replicas, KV "
        f"{m['plan.kv_used_fraction']:.0%} full"
    )
    latency = m["rl.latency.end_to_end_s"]
    if latency["mean"] is not None:
        yield (
            f"  a rollout takes {seconds(latency['mean'])} (p50 {seconds(latency['p50'])}, p90 "
            f"{seconds(latency['p90'])}, p99 {seconds(latency['p99'])}): decode "
            f"{seconds(m['rl.latency.decode_s']['mean'])}, prefill "
            f"{seconds(m['rl.latency.prefill_s']['mean'])}, tools {seconds(m['rl.latency.tool_s']['mean'])}; "
            f"first token {seconds(m['plan.latency.first_token_s']['mean'])}"
        )
    if spec.workload.uses_sandbox:
        yield (
            f"  {m['plan.sandbox.live']:.0f} of {spec.scheduler.max_sandboxes} sandboxes live, "
            f"{m['plan.sandbox.starts_per_s']:.2g} starts/s"
        )
    yield "training"
    mfu = "" if m["rl.trainer.mfu"] is None else f", MFU {m['rl.trainer.mfu']:.1%}"
    yield (
        f"  {m['rl.consumption.active_samples_per_s']:.3g} samples/s while it computes, "
        f"{seconds(m['plan.compute_s'])} for {flow.rows:.0f} rollouts{mfu}"
    )


def _where(spec: Spec, plan: Plan) -> Iterator[str]:
    m = plan.metrics
    depth, signal = m["rl.queue.depth.all"]["mean"], m["rl.queue.depth.signal"]["mean"]
    yield "queue"
    yield f"  {depth:.0f} groups ahead of the trainer, {signal:.0f} of them waiting for it"
    for name in ("trajectory", "token"):
        found = m[f"rl.staleness.{name}"]
        mean = "-" if found["mean"] is None else f"{found['mean']:.1f}"
        yield f"  {name} staleness {mean} steps: {_shares(found['counts'])}"
    yield "tokens"
    yield (
        f"  {m['plan.generator.tokens_per_gpu_s']:,.0f} decoded tokens/s a generator GPU, "
        f"{m['plan.trainer.tokens_per_gpu_s']:,.0f} trained a trainer GPU while it computes; prefill takes "
        f"{m['plan.prefill_fraction']:.0%} of the engines' time"
    )
    if plan.cost is not None:
        cost = plan.cost
        run = m.get("plan.usd_per_run")
        whole = (
            f", {money(run)} for {spec.scheduler.stop.steps} steps in {seconds(m['plan.run_s'])}"
            if run
            else ""
        )
        yield f"  {money(m['plan.usd_per_step'])} a step{whole}"
        yield (
            f"  {money(cost.usd_per_mtok)} per million sampled tokens trained, "
            f"{money(cost.usd_per_row_mtok)} per million tokens of trained rows, prompts included"
        )
        if plan.service is not None:
            share = cost.sampled_tokens_per_s / cost.row_tokens_per_s
            price = plan.service.per_mtok(share)
            yield (
                f"  {plan.service.service} asks {money(price)} for the same rows ({plan.service.date}); "
                f"this is {cost.usd_per_row_mtok / price:.2f} times as much"
            )


def _shares(counts: dict[str, float]) -> str:
    total = sum(counts.values()) or 1.0
    return ", ".join(f"{age}: {count / total:.0%}" for age, count in counts.items() if count / total >= 0.005)


def options_text(options: Sequence[Option], gpus: int) -> str:
    """Return the best ways to spend a budget, as lines of text."""
    best = options[0]
    lines = [
        f"best of {gpus} accelerators: {best.trainer} train, {best.generator} generate: "
        f"{best.samples_per_s:.3g} samples/s trained, wait {best.wait:.0%}",
        "  trainer  generator  samples/s  wait  staleness  $/1000 rollouts  settings",
    ]
    for option in options:
        usd = "-" if option.usd_per_row is None else f"{1000 * option.usd_per_row:.2f}"
        settings = " ".join(
            part for part in option.overrides if not part.startswith("hardware.trainer.count")
        )
        lines.append(
            f"  {option.trainer:>7}  {option.generator:>9}  {option.samples_per_s:>9.3g}  {option.wait:>4.0%}"
            f"  {option.staleness:>9.1f}  {usd:>15}  {settings}"
        )
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    """Return a duration with three figures."""
    if value is None:
        return "-"
    if value < 1.0:
        return f"{1000 * value:.3g} ms"
    if value < 600.0:
        return f"{value:.3g} s"
    if value < 7200.0:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def money(value: float) -> str:
    """Return dollars with as many cents as matter."""
    return f"${value:,.0f}" if value >= 1000 else f"${value:.2f}"


def plan_plain(plan: Plan, changes: Sequence[Change], options: Sequence[Option] | None) -> dict[str, Any]:
    """Return everything that a plan says, for JSON."""
    plain: dict[str, Any] = {
        **plan.metrics,
        "plan.by": plan.by,
        "plan.bottleneck": {
            "name": plan.bottleneck.name,
            "why": plan.bottleneck.why,
            "remedy": plan.bottleneck.remedy,
            "gains": plan.gains,
        },
        "plan.course": [_fields(moment) for moment in plan.course],
        "plan.sensitivity": [_fields(change) for change in changes],
        "plan.notes": plan.notes,
    }
    if options is not None:
        plain["plan.options"] = [_fields(option) for option in options]
    return plain


def _fields(record: object) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}  # pyright: ignore
