"""What `headway cost` says: owning an accelerator, a run by its tokens, a service's prices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import UserError
from headway.matching.cost import RunCost, ownership, price_of, service_prices
from headway.matching.plan import make_plan
from headway.matching.plan_control import follow_control
from headway.matching.plan_text import money
from headway.matching.spec_load import load_cost, load_spec
from headway.telemetry.journal import read_journal
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.supervised import is_supervised

if TYPE_CHECKING:
    from collections.abc import Sequence


def cost_plain(spec: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the costs as plain values.

    Args:
        spec: a SPEC, or the directory of a run; None for an accelerator alone.
        overrides: of the SPEC's keys, `cost.` ones among them.

    Raises:
        UserError: what `load_spec` and the journal refuse, and a run that says no price.
    """
    is_run = spec is not None and spec.is_dir()
    settings = load_cost(None if is_run else spec, overrides)
    owned = ownership(settings)
    plain: dict[str, Any] = {
        "cost.usd_per_gpu_hour": owned.total,
        "cost.capital": owned.capital,
        "cost.power": owned.power,
        "cost.hosting": owned.hosting,
        "cost.upkeep": owned.upkeep,
        "cost.unused": owned.unused,
        "cost.capital_fraction": owned.capital_fraction,
        "services": [
            {
                "service": price.service, "model": price.model, "prefill": price.prefill,
                "sample": price.sample, "train": price.train, "date": price.date, "source": price.source,
            }
            for price in service_prices()
        ],
    }  # fmt: skip
    if spec is None:
        return plain
    if is_run:
        return plain | _of_run(spec)
    loaded = load_spec(spec, overrides)
    followed = follow_control(loaded)
    plan = make_plan(loaded if followed is None else followed.spec)
    if plan.cost is None:
        rule = "must have a price, for the accelerators have none in the table"
        remedy = "Set hardware.trainer.usd_per_gpu_hour and hardware.generator.usd_per_gpu_hour"
        key = "hardware.trainer.usd_per_gpu_hour"
        raise UserError(rule, key=key, remedy=remedy, where=loaded.source.where(key))
    name = loaded.model.name if loaded.model is not None else ""
    return plain | _of_cost(plan.cost, name, spec.stem)


def _of_run(run: Path) -> dict[str, Any]:
    if is_supervised(run):
        rule = "must be a run of headway train: this one is a supervised run, of headway sft"
        raise UserError(rule, value=str(run), remedy="Give a run with a journal, or a SPEC")
    metrics = RunMetrics.of(read_journal(run))
    summary = metrics.summary()
    price, wall_s = metrics.facts.usd_per_hour, summary["wall_s"]
    if not price:
        rule = "must be a run with a price: run.usd_per_hour was not set"
        remedy = "Set run.usd_per_hour in the config of the next run, 12.72 for eight accelerators at $1.59"
        raise UserError(rule, value=str(run), remedy=remedy)
    if not wall_s or not summary["rl.cost.trained_tokens"]:
        rule = "must be a run that has trained something: this one took no step"
        raise UserError(rule, value=str(run), remedy="Let it take a step, or give a SPEC")
    tokens = sum(record.num_tokens for record in metrics.steps.records)
    cost = RunCost(price, tokens / wall_s, summary["rl.cost.trained_tokens"] / wall_s)
    return _of_cost(cost, "", run.name)


def _of_cost(cost: RunCost, model: str, name: str) -> dict[str, Any]:
    share = cost.sampled_tokens_per_s / cost.row_tokens_per_s
    service = price_of(model)
    found: dict[str, Any] = {
        "name": name,
        "run.usd_per_hour": cost.usd_per_hour,
        "run.row_tokens_per_s": cost.row_tokens_per_s,
        "run.sampled_tokens_per_s": cost.sampled_tokens_per_s,
        "rl.cost.usd_per_mtok": cost.usd_per_mtok,
        "run.usd_per_row_mtok": cost.usd_per_row_mtok,
        "run.sampled_fraction": share,
    }
    if service is not None:
        found["service.usd_per_row_mtok"] = service.per_mtok(share)
        found["service.ratio"] = cost.usd_per_row_mtok / service.per_mtok(share)
        found["service.name"] = f"{service.service}, {service.model}, {service.date}"
    return found


def cost_text(found: dict[str, Any]) -> str:
    """Return the costs as lines of text."""
    lines = [
        f"an accelerator costs {money(found['cost.usd_per_gpu_hour'])} an hour to own: capital "
        f"{money(found['cost.capital'])} ({found['cost.capital_fraction']:.1%}), power "
        f"{money(found['cost.power'])}, hosting {money(found['cost.hosting'])}, upkeep "
        f"{money(found['cost.upkeep'])}, hours that nobody uses {money(found['cost.unused'])}"
    ]
    if "run.usd_per_hour" in found:
        lines += [
            f"{found['name']}: {money(found['run.usd_per_hour'])} an hour",
            f"  {money(found['rl.cost.usd_per_mtok'])} per million sampled tokens that are trained "
            f"({found['run.sampled_tokens_per_s']:,.0f} a second)",
            f"  {money(found['run.usd_per_row_mtok'])} per million tokens of trained rows, prompts and "
            f"observations too ({found['run.row_tokens_per_s']:,.0f} a second)",
        ]
    if "service.name" in found:
        lines.append(
            f"  a service would ask {money(found['service.usd_per_row_mtok'])} for a million tokens of such "
            f"rows ({found['service.name']}): this run is {found['service.ratio']:.2f} times that"
        )
    if "run.usd_per_hour" in found:
        lines.append("headway cost alone lists the services' prices")
        return "\n".join(lines)
    lines.append("services, $ per million tokens (prefill, sample, train)")
    lines += [
        f"  {price['service']:<8} {price['model']:<18} {price['prefill']:>5.2f} {price['sample']:>5.2f} "
        f"{price['train']:>5.2f}  {price['date']}, {price['source']}"
        for price in found["services"]
    ]
    return "\n".join(lines)
