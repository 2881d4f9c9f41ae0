"""headway env try."""

from __future__ import annotations

import json

import click

from headway.cli import complete
from headway.cli.arguments import full_override, overrides_argument
from headway.cli.output import until_nobody_reads


@click.command("try")
@click.argument("name", shell_complete=complete.environments)
@overrides_argument
@click.option("--model", default="smollm2", show_default=True, help="Who answers; a value for model.path.")
@click.option(
    "--split", type=click.Choice(["train", "eval"]), default="train", show_default=True, help="Which tasks."
)
@click.option(
    "--index", type=click.IntRange(min=0), default=0, show_default=True, help="Which task of the split."
)
@click.option("--level", type=int, help="Difficulty of the task; the environment's own mix if not given.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of task and sampling."
)
@click.option(
    "--temperature",
    type=float,
    default=1.0,
    show_default=True,
    help="Of sampling; 0 is greedy.",
)
def command(
    name: str,
    overrides: tuple[str, ...],
    model: str,
    split: str,
    index: int,
    level: int | None,
    seed: int,
    temperature: float,
) -> int:
    r"""Run one rollout and show it turn by turn.

    NAME is an environment that `headway env list` shows, or your own: module:Class or a .py file. Shows each
    message, what the model answered, which tokens would be trained and which are masked, and the score with
    its reasons. KEY=VALUE without a dot is an argument of the environment, with a dot a config key.

    \b
    Examples:
      headway env try python-code
      headway env try python-code kind=function --level 2
      headway env try arithmetic --model tiny --seed 3 --temperature 0
    """
    from headway.config.load import load_config
    from headway.runtime.tryout import try_once

    fixed = (f"environment.name={json.dumps(name)}", f"model.path={json.dumps(model)}", f"run.seed={seed}")
    measured = f"eval.temperature={temperature}"  # which has the same rules
    config = load_config(None, (*fixed, *map(full_override, overrides), measured))
    with until_nobody_reads():
        return try_once(config, split=split, index=index, level=level, temperature=temperature)
    return 0
