"""headway train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli.arguments import view_option
from headway.cli.data import asked_for, config_or_data
from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from headway.telemetry.settings import Choice

SMOKE = ("stop.steps=2", "eval.num_tasks=8")


@click.command("train")
@config_or_data
@click.option(
    "--print-config",
    is_flag=True,
    help="Print the resolved config, every key explained, and stop; what it prints is a config file.",
)
@click.option("--smoke", is_flag=True, help="Two steps and small evaluations: does it run at all?")
@view_option
def command(
    config: Path | None,
    overrides: tuple[str, ...],
    print_config: bool,
    smoke: bool,
    view: Choice | None,
    **data: str | None,
) -> int:
    r"""Train a model as a config file says, or on a file of data.

    CONFIG is a TOML file; docs/configuration.md lists its keys. KEY=VALUE overrides one of them: the last one
    wins, and an empty value restores the default. The run's directory is printed first: runs/NAME, or
    runs/NAME-2 and so on where that exists, for a run never overwrites another. It holds the resolved config,
    the journal, payloads, checkpoints and a summary. What `headway check` finds without loading the model is
    told before.

    Without CONFIG, --model, --data and --reward say what is trained on what; the config that means the same
    is printed first, and the run's directory holds it in full. Beside CONFIG they take its values' place.

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
      headway train --model smollm2 --data train.jsonl --reward number
      headway train --model smollm2 --data train.jsonl --reward reward.py:score queue.group_size=16
    """
    from headway.config.idle import idle_settings
    from headway.config.load import load_config, placing
    from headway.config.show import render_config

    config, wanted, name = asked_for(config, overrides, **data)
    given = (*(SMOKE if smoke else ()), *wanted)
    resolved = load_config(config, given)
    if print_config:
        for line in idle_settings(resolved, config, given):
            click.echo(line, err=True)
        with until_nobody_reads():
            click.echo(render_config(resolved), nl=False)
        return 0
    if config is None:
        from headway.config.minimal import as_config

        click.echo(f"# This run as a config file:\n{as_config(given)}\n")
    from headway.runtime.train import train

    with placing(config, given):
        return train(resolved, config_path=config, overrides=given, view=view, default_name=name)
