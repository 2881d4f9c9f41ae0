"""headway train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli.arguments import overrides_argument, view_option
from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from headway.telemetry.settings import Choice

SMOKE = ("stop.steps=2", "eval.num_tasks=8")


@click.command("train")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--print-config",
    is_flag=True,
    help="Print the resolved config, every key explained, and stop; what it prints is a config file.",
)
@click.option("--smoke", is_flag=True, help="Two steps and small evaluations: does it run at all?")
@view_option
def command(
    config: Path, overrides: tuple[str, ...], print_config: bool, smoke: bool, view: Choice | None
) -> int:
    r"""Train a model as a config file says.

    CONFIG is a TOML file; docs/configuration.md lists its keys. KEY=VALUE overrides one of them: the last one
    wins, and an empty value restores the default. The run's directory is printed first: runs/NAME, or
    runs/NAME-2 and so on where that exists, for a run never overwrites another. It holds the resolved config,
    the journal, payloads, checkpoints and a summary. What `headway check` finds without loading the model is
    told before.

    On a terminal, a frame below the lines says what goes on; `headway watch` shows the same from elsewhere.
    Ctrl-C finishes the step, checkpoints and ends; a second one ends at once. Either leaves no process and no
    sandbox, and `headway resume RUN` goes on.

    \b
    Examples:
      headway train examples/quickstart.toml
      headway train examples/quickstart.toml queue.bound=0 run.name=sync
      headway train examples/tiny.toml --view lines
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
        with until_nobody_reads():
            click.echo(render_config(resolved), nl=False)
        return 0
    from headway.runtime.train import train

    with placing(config, given):
        return train(resolved, config_path=config, overrides=given, view=view)
