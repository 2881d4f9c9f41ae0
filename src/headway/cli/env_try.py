"""headway env try."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headway.cli import complete
from headway.cli.arguments import full_override, overrides_argument
from headway.cli.data import asked_for, data_options
from headway.cli.output import until_nobody_reads


@click.command("try")
@click.argument("name", required=False, default="", shell_complete=complete.environments)
@overrides_argument
@click.option(
    "--model", help="Who answers; a value for model.path. If not given, the config file's, or smollm2."
)
@data_options
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
    model: str | None,
    split: str,
    index: int,
    level: int | None,
    seed: int,
    temperature: float,
    **data: str | None,
) -> int:
    r"""Run one rollout and show it turn by turn.

    NAME is an environment that `headway env list` shows, your own (module:Class or a .py file), or a config
    file, such as a run's config.toml; with --data and --reward it is left out. Shows each
    message, what the model answered, which tokens would be trained and which are masked, and the score with
    its reasons. KEY=VALUE without a dot is an argument of the environment, with a dot a config key.

    \b
    Examples:
      headway env try python-code
      headway env try python-code kind=function --level 2
      headway env try arithmetic --model tiny --seed 3 --temperature 0
      headway env try reasoning-gym:chain_sum --level 1
      headway env try --data train.jsonl --reward number --index 3
    """
    from headway.config.load import load_config
    from headway.runtime.tryout import try_once

    if name and "=" in name and not Path(name).exists():  # no NAME: the first of KEY=VALUE
        name, overrides = "", (name, *overrides)
    path = Path(name) if name.endswith(".toml") else None
    own = tuple(map(full_override, overrides))
    if name and path is None:
        own = (f"environment.name={json.dumps(name)}", *own)
    chosen = model if model is not None or path is not None else "smollm2"
    asked = asked_for(path, own, model=chosen, **data)
    fixed = (f"run.seed={seed}", *asked.overrides)
    measured = f"eval.temperature={temperature}"  # which has the same rules
    config = load_config(asked.config, (*fixed, measured))
    with until_nobody_reads():
        click.echo(f"model: {config.model.path} ({_named_by(overrides, model, path)})")
        return try_once(config, split=split, index=index, level=level, temperature=temperature)
    return 0


def _named_by(overrides: tuple[str, ...], model: str | None, path: Path | None) -> str:
    """Return what chose the model."""
    if any(override.partition("=")[0].strip() == "model.path" for override in overrides):
        return "model.path"
    if model is not None:
        return "--model"
    return f"model.path of {path}" if path is not None else "the default; --model MODEL chooses another"
