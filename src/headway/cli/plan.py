"""headway plan."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headway.cli.arguments import overrides_argument
from headway.cli.output import until_nobody_reads


@click.command("plan")
@click.argument("spec", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--step",
    type=click.IntRange(0, 1_000_000_000),
    default=0,
    show_default=True,
    help="Steps taken before the moment that is planned.",
)
@click.option("--optimise", is_flag=True, help="Search the best split of --gpus accelerators, and settings.")
@click.option("--gpus", type=click.IntRange(min=2), help="Accelerators to split; by default the SPEC's.")
@click.option("--bound", type=click.IntRange(min=0), help="Staleness bound of --optimise, in steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with everything.")
def command(
    spec: Path,
    overrides: tuple[str, ...],
    step: int,
    optimise: bool,
    gpus: int | None,
    bound: int | None,
    as_json: bool,
) -> int:
    r"""Predict what a run will do, what limits it, and what it costs.

    SPEC is a TOML file: the sections of a run's config, and what its machines and rollouts are like
    (docs/matching.md). KEY=VALUE overrides one of its keys. Nothing is loaded and nothing is trained. The
    last line says what the figures rest on: the fluid model, or a short simulation of the same scheduler
    where that does not hold.

    \b
    Examples:
      headway plan examples/cases/case1.toml
      headway plan examples/cases/case1.toml queue.bound=8 hardware.trainer.count=96
      headway plan examples/cases/case1.toml --optimise --gpus 256 --bound 16
      headway plan examples/cases/case1.toml --json
    """
    from headway.matching.optimise import optimise as search
    from headway.matching.optimise import present
    from headway.matching.plan import make_plan
    from headway.matching.plan_control import follow_control
    from headway.matching.plan_text import options_text, plan_plain, plan_text
    from headway.matching.sensitivity import sensitivity, settled
    from headway.matching.spec_load import load_spec

    if not optimise and (gpus is not None or bound is not None):
        raise click.UsageError("--gpus and --bound belong to --optimise.")
    loaded = load_spec(spec, overrides)
    followed = None if optimise else follow_control(loaded, step=step)
    loaded = loaded if followed is None else followed.spec
    plan = make_plan(loaded, step=step)
    changes, judge = ([], "") if optimise else sensitivity(loaded, plan)
    plan = settled(plan, changes)
    options = None
    if optimise:
        gpus = gpus or loaded.hardware.trainer.count + loaded.hardware.generator.count
        options = search(loaded, gpus, bound=bound)
    with until_nobody_reads():
        if as_json:
            plain = plan_plain(plan, changes, options, judge, followed)
            click.echo(json.dumps(plain, indent=2, allow_nan=False))
        elif options is not None:
            controlled = loaded.config.control.mode == "on"
            click.echo(options_text(options, gpus or 0, present(loaded), controlled=controlled))
        else:
            click.echo(plan_text(loaded, plan, changes, judge, followed))
    return 0
