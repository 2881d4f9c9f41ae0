"""A plan in words: the answer first, then what it rests on."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway.matching.optimise import Option
    from headway.matching.plan import Plan
    from headway.matching.plan_control import Followed
    from headway.matching.sensitivity import Change
    from headway.matching.spec_load import Spec


_WIDTH = 116
_NOISE = 0.005  # of the rate: changes below it are told together
_BOTTLENECKS = {
    "setting": "slots of the engines (max_running)",
    "kv": "memory for keys and values",
    "zero_advantage": "groups without signal",
    "max_running_rollouts": "queue.max_running_rollouts",
    "sandbox_starts": "sandbox starts",
    "depth": "queue.depth",
    "tool": "tool calls",
    "start": "sandbox starts",
    "score": "scoring",
}
_CAPS = _BOTTLENECKS | {"trainer": "what the trainer takes"}


def plan_text(
    spec: Spec, plan: Plan, changes: Sequence[Change], judge: str = "", control: Followed | None = None
) -> str:
    """Return a plan as lines of text; `judge` is the model that the changes are by."""
    lines: list[str] = []
    for line in _lines(spec, plan, changes, judge, control):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += wrap(
            line.lstrip(), _WIDTH, initial_indent=indent,
            subsequent_indent=indent + "  ", break_on_hyphens=False,
        ) if len(line) > _WIDTH else [line]  # fmt: skip
    return "\n".join(lines)


def _lines(
    spec: Spec, plan: Plan, changes: Sequence[Change], judge: str, control: Followed | None
) -> Iterator[str]:
    m = plan.metrics
    wall, wait = m["rl.consumption.wall_samples_per_s"], m["rl.trainer.wait_fraction"]
    at = f"; this is after {plan.step} steps, and it drifts (below)" if plan.course else ""
    yield (
        f"{spec.name}: {wall:.3g} samples/s trained, a step each {seconds(m['plan.step_s'])}; "
        f"the trainer waits {wait:.0%}{at}"
    )
    if control is not None:
        yield f"control {control.words}"
    name = plan.bottleneck.name
    yield f"bottleneck: {_BOTTLENECKS.get(name, name)}. {_sentence(plan.bottleneck.why)}"
    yield f"  remedy: {plan.bottleneck.remedy}"
    yield ""
    yield from _rates(spec, plan)
    yield ""
    yield from _where(spec, plan)
    if plan.course:
        yield ""
        yield (
            "as behaviour drifts, by the fluid model moved to the figures above (steps, samples/s trained, "
            "wait, no signal, prefill share, step time)"
        )
        for moment in plan.course:
            shares = f"{moment.wait:>4.0%}  {moment.zero:>4.0%}  {moment.prefill_fraction:>4.0%}"
            yield f"  {moment.step:>6}  {moment.wall:>8.3g}  {shares}  {seconds(moment.step_s)}"
    if changes:
        yield ""
        yield f"what changes would do, by {judge} (samples/s trained, wait, mean staleness, $ per token)"
        nothing: list[str] = []
        for change in changes:
            usd = "" if change.usd is None else f"  {change.usd:+.0%}"
            if abs(change.samples) < _NOISE and abs(change.usd or 0.0) < _NOISE:
                nothing.append(change.words)
                continue
            after = f"{change.samples:+5.0%}  {change.wait:>4.0%}  {change.staleness:>4.1f}{usd}"
            yield f"  {change.words:<52} {after}"
        if nothing:
            yield f"  nothing: {'; '.join(nothing)}"
    for note in plan.notes:
        yield f"note: {note}"
    yield ""
    yield f"by {plan.by}"
    yield f"MFU convention: {m['rl.trainer.mfu_convention']}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rates(spec: Spec, plan: Plan) -> Iterator[str]:
    m = plan.metrics
    yield "production"
    yield (
        f"  {m['rl.production.samples_per_s']:.3g} samples/s scored, "
        f"{m['rl.production.effective_samples_per_s']:.3g} of them trained"
    )
    if m["plan.blocked_fraction"] > 0.005:
        yield f"  admission holds back {m['plan.blocked_fraction']:.0%} of what could be"
    lost = {
        "no signal": m["plan.discard.filtered_fraction"],
        "too old": m["plan.discard.stale_fraction"],
        "cancelled (oversampled), hardly any of them scored": m["plan.discard.cancelled_fraction"],
        "failed": m["plan.discard.failed_fraction"],
    }
    whole = round(100 * m["rl.discard.rollout_fraction"])
    parts = ", ".join(f"{share}% {name}" for name, share in percents(lost, whole).items() if share)
    yield f"  {whole}% of all rollouts started are discarded" + (f": {parts}" if parts else "")
    capped = m["plan.concurrency.capped_by"]
    yield (
        f"  {m['plan.concurrency.in_flight']:,.0f} rollouts in flight, "
        f"limited by {_CAPS.get(capped, capped)}; "
        f"{m['plan.concurrency.running_per_replica']:.1f} decode on "
        f"{'the replica' if spec.replicas == 1 else f'each of {spec.replicas} replicas'}"
        + (f", KV {m['plan.kv_used_fraction']:.0%} full" if m["plan.kv_tokens"] else "")
    )
    latency = m["rl.latency.end_to_end_s"]
    if latency["mean"] is not None:
        named = {"waiting": "queue", "parked": "parked", "sandbox start": "sandbox_start"}
        named |= {"prefill": "prefill", "decode": "decode", "tools": "tool", "scoring": "score"}
        means = {words: m[f"rl.latency.{name}_s"]["mean"] or 0.0 for words, name in named.items()}
        shown = [f"{words} {seconds(took)}" for words, took in means.items() if took > 0.0]
        yield (
            f"  a scored rollout takes {seconds(latency['mean'])} (p50 {seconds(latency['p50'])}, p90 "
            f"{seconds(latency['p90'])}, p99 {seconds(latency['p99'])}): {', '.join(shown)}; "
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
        f"{seconds(m['plan.compute_s'])} for {m['plan.rows_per_step']:.0f} rollouts{mfu}"
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
                f"  the training service {plan.service.service} asks {money(price)} "
                f"for the same rows ({plan.service.date}); "
                f"this is {cost.usd_per_row_mtok / price:.2f} times as much"
            )


def _shares(counts: dict[str, float]) -> str:
    return ", ".join(f"{age}: {share}%" for age, share in percents(counts, 100).items() if share)


def percents(parts: dict[str, float], whole: int) -> dict[str, int]:
    """Return parts in whole per cents that add up to `whole`: those with the largest remainders round up."""
    total = sum(parts.values())
    if total <= 0.0:
        return dict.fromkeys(parts, 0)
    exact = {name: part / total * whole for name, part in parts.items()}
    found = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: found[name] - exact[name])
    for name in by_rest[: whole - sum(found.values())]:
        found[name] += 1
    return found


def options_text(
    options: Sequence[Option], gpus: int, present: Option | None = None, *, controlled: bool = False
) -> str:
    """Return the best ways to spend a budget, as lines of text; `present` is the SPEC as it is."""
    best = options[0]
    lines = [
        f"best of {gpus} accelerators: {best.trainer} train, {best.generator} generate: "
        f"{best.samples_per_s:.3g} samples/s trained, wait {best.wait:.0%} (by the fluid model)",
        "     trainer  generator  samples/s  sampled tokens/s  wait  staleness  $/1000 rollouts  $/M sampled",
    ]
    rows = [*((str(place), option) for place, option in enumerate(options, 1))]
    if present is not None:
        rows.append(("now", present))
    for place, option in rows:
        usd = "-" if option.usd_per_row is None else f"{1000 * option.usd_per_row:.2f}"
        each = option.tokens_per_s / max(1e-12, option.samples_per_s)
        mtok = "-" if option.usd_per_row is None else f"{1e6 * option.usd_per_row / max(1e-9, each):.2f}"
        lines.append(
            f"{place:>3}  {option.trainer:>7}  {option.generator:>9}  {option.samples_per_s:>9.3g}  "
            f"{option.tokens_per_s:>16,.0f}  {option.wait:>4.0%}  {option.staleness:>9.1f}  "
            f"{usd:>15}  {mtok:>11}"
        )
    lines.append("settings, to be given to headway plan or written into the SPEC")
    for place, option in enumerate(options, 1):
        lines += wrap(
            " ".join(option.overrides), _WIDTH, initial_indent=f"{place:>3}  ", subsequent_indent="     ",
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
    if len({"".join(part for part in o.overrides if "rollouts_extra" in part) for o in options}) > 1:
        lines += wrap(
            "note: oversampling keeps the first to finish, which are the short ones: samples differ between "
            "rows, so compare sampled tokens and dollars by token, and mind the bias towards short answers",
            _WIDTH, subsequent_indent="  ",
        )  # fmt: skip
    if controlled:
        lines += wrap(
            "note: all of these are settings that stay as they are. control.mode is on, and would turn some "
            "of them: plan the best of them without --optimise for what it settles on",
            _WIDTH, subsequent_indent="  ",
        )  # fmt: skip
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


def plan_plain(
    plan: Plan,
    changes: Sequence[Change],
    options: Sequence[Option] | None,
    judge: str = "",
    control: Followed | None = None,
) -> dict[str, Any]:
    """Return everything that a plan says, for JSON."""
    plain: dict[str, Any] = {
        **plan.metrics,
        "plan.by": plan.by,
        "plan.sensitivity_by": judge,
        "plan.bottleneck": {
            "name": plan.bottleneck.name,
            "why": plan.bottleneck.why,
            "remedy": plan.bottleneck.remedy,
            "gains": plan.gains,
        },
        "plan.course": [_fields(moment) for moment in plan.course],
        "plan.sensitivity": [_fields(change) for change in changes],
        "plan.notes": plan.notes,
        "plan.control": None if control is None else control.plain(),
    }
    if options is not None:
        plain["plan.options"] = [_fields(option) for option in options]
    return plain


def _fields(record: object) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}  # pyright: ignore
