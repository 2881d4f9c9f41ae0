"""headway simulate."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli.arguments import overrides_argument
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.matching.simulate_models import SimSummary


@click.command("simulate")
@click.argument("spec", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--steps", type=click.IntRange(min=1), help="Optimizer steps, in place of stop.steps.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all chance.")
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's directory, which must not exist; else named as `headway train` names its.",
)
@click.option("--no-run", is_flag=True, help="Write nothing: faster, and in memory that does not grow.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="First steps that the printed figures leave out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every metric as one JSON object.")
def command(
    spec: Path,
    overrides: tuple[str, ...],
    steps: int | None,
    seed: int,
    run: Path | None,
    no_run: bool,
    warmup: int,
    as_json: bool,
) -> int:
    r"""Simulate a run as a SPEC describes it, with the real scheduler.

    SPEC is a run's config with hardware, or measured times, and a workload beside it (docs/matching.md);
    KEY=VALUE overrides one of its keys. No model runs: generator, trainer, tools and sandboxes are models, on
    a virtual clock. The run's directory has a journal like that of a real run, so `headway report`,
    `headway rollouts` and `headway replay` work on it. The same seed gives the same journal. It predicts
    rates and staleness, never learning.

    \b
    Examples:
      headway simulate examples/cases/case1.toml --steps 20 --no-run
      headway simulate examples/cases/case1.toml queue.bound=4 --steps 5 --run runs/bound-4
      headway report runs/bound-4
    """
    from headway.matching.spec_load import load_spec
    from headway.runtime import simulated_run

    if run is not None and no_run:
        raise click.UsageError("--run and --no-run exclude each other.")
    loaded = load_spec(spec, overrides)
    planned = steps or loaded.config.stop.steps
    if planned and warmup >= planned:
        rule = f"must be below the {planned} steps that are simulated: nothing would be measured"
        raise UserError(rule, key="--warmup", value=warmup, remedy="Lower it, or raise --steps")
    if run is not None and run.exists():
        rule = "exists already: must be a new directory"
        raise UserError(rule, key="--run", value=str(run), remedy="Give another one, or leave --run out")
    run_dir = None if no_run else simulated_run.new_directory(loaded, run)
    if run_dir is not None and not as_json:
        click.echo(f"run directory: {run_dir}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    summary = simulated_run.simulate_spec(
        loaded, steps=steps or 0, seed=seed, warmup_steps=warmup, run_dir=run_dir
    )
    if as_json:
        click.echo(simulated_run.as_json(summary, run_dir))
    else:
        click.echo(_text(summary, loaded.config.control.mode == "on"))
    return 0


def _text(summary: SimSummary, controlled: bool) -> str:
    metrics = summary.metrics
    lines = [
        f"{summary.outcome}: {summary.steps} steps in {summary.virtual_s:,.0f} s of the run's time "
        f"({summary.num_events:,} events)",
        f"production  {_rate(metrics, 'production.samples_per_s')}, with signal and fresh enough "
        f"{_rate(metrics, 'production.effective_samples_per_s')}",
        f"consumption {_rate(metrics, 'consumption.wall_samples_per_s')}, while the trainer computes "
        f"{_rate(metrics, 'consumption.active_samples_per_s')}",
        f"trainer     waits {_share(metrics['rl.trainer.wait_fraction'])}, computes "
        f"{_share(metrics['rl.trainer.compute_fraction'])}",
        f"generator   decodes {_share(metrics['sim.generator.decode_fraction'])}, prefills "
        f"{_share(metrics['sim.generator.prefill_fraction'])} of the time; KV cache "
        f"{_share(metrics['sim.generator.kv_used_fraction'])} full, "
        f"{metrics['rl.generator.preemptions']} preemptions",
        f"in flight   {_number(metrics['sim.rollouts.in_flight']['mean'])} rollouts; sandboxes "
        f"{_number(metrics['rl.sandbox.live']['mean'])}",
        f"latency     {_number(metrics['rl.latency.end_to_end_s']['mean'])} s a rollout, p99 "
        f"{_number(metrics['rl.latency.end_to_end_s']['p99'])} s",
        f"staleness   {_number(metrics['rl.staleness.token']['mean'])} steps a token, at most "
        f"{metrics['rl.staleness.token']['max']}",
        f"discarded   {_share(metrics['rl.discard.rollout_fraction'])} of the rollouts, "
        f"{_share(metrics['rl.discard.token_fraction'])} of the tokens; without signal "
        f"{_share(metrics['rl.group.zero_advantage_fraction'])} of the groups",
    ]
    lines += [f"control     {one.key} = {one.value}: {one.reason}" for one in summary.decisions]
    if controlled and not summary.decisions:
        lines.append("control     changed nothing")
    return "\n".join(lines)


def _rate(metrics: dict[str, Any], name: str) -> str:
    return f"{_number(metrics[f'rl.{name}'])} samples/s"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
