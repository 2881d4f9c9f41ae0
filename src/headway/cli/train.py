"""headway train."""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli.arguments import overrides_argument

SMOKE = ("stop.steps=2", "eval.num_tasks=8")


@click.command("train")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--print-config", is_flag=True, help="Print the resolved config, every key explained, and stop."
)
@click.option("--smoke", is_flag=True, help="Two steps and small evaluations: does it run at all?")
def command(config: Path, overrides: tuple[str, ...], print_config: bool, smoke: bool) -> int:
    r"""Train a model as a config file says.

    CONFIG is a TOML file; docs/configuration.md lists its keys. KEY=VALUE overrides one of them. The run's
    directory is printed first; it holds the resolved config, journal, checkpoints and summary. What `headway
    check` finds without loading the model is told before it.

    Ctrl-C finishes the step, checkpoints and ends; a second one ends at once. `headway resume` goes on.

    \b
    Examples:
      headway train examples/quickstart.toml
      headway train examples/quickstart.toml queue.bound=0 run.name=sync
      headway train examples/tiny.toml --smoke
      headway train examples/tiny.toml --print-config
    """
    from headway.config.idle import idle_settings
    from headway.config.load import load_config, placing
    from headway.config.show import render_config

    given = (*(SMOKE if smoke else ()), *overrides)
    resolved = load_config(config, given)
    if print_config:
        for line in idle_settings(resolved, config, given):
            click.echo(line, err=True)
        click.echo(render_config(resolved), nl=False)
        return 0
    from headway.runtime.train import train

    with placing(config, given):
        return train(resolved, config_path=config, overrides=given)
