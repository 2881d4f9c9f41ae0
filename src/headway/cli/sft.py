"""headway sft."""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli.arguments import overrides_argument
from headway.cli.output import until_nobody_reads

SMOKE = ("sft.steps=2",)


@click.command("sft")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option(
    "--print-config", is_flag=True, help="Print the resolved config, every key explained, and stop."
)
@click.option("--smoke", is_flag=True, help="Two steps: does it run at all?")
def command(config: Path, overrides: tuple[str, ...], print_config: bool, smoke: bool) -> int:
    r"""Train a model on written conversations (supervised).

    CONFIG is a TOML file with the sections [run], [model], [sft], [trainer] and [checkpoint]; it may hold
    those of `headway train` too, which are not read here. KEY=VALUE overrides a setting. The data is JSONL,
    one conversation a line:
    {"messages": [{"role": "user", "content": "3+5="}, {"role": "assistant", "content": "8"}]}, or
    {"prompt": "3+5=", "completion": "8"}. The assistant's messages are trained.

    At the end RUN/model holds the trained model, which model.path takes: a warm start for `headway train`.
    Ctrl-C finishes the step, checkpoints and ends; `headway resume RUN` goes on.

    \b
    Examples:
      headway sft examples/sft.toml
      headway sft examples/sft.toml sft.epochs=1 sft.learning_rate=1e-4
      headway sft examples/sft.toml --smoke
      headway train examples/tiny.toml model.path=runs/sft/model
    """
    from headway.config.load import load_sft_config, placing, sections_not_read
    from headway.config.show import render_config

    given = (*(SMOKE if smoke else ()), *overrides)
    resolved = load_sft_config(config, given)
    if print_config:
        with until_nobody_reads():
            click.echo(render_config(resolved), nl=False)
        return 0
    if others := sections_not_read(config):
        names = " ".join(f"[{name}]" for name in others)
        click.echo(f"not read by headway sft, of {config}: {names}", err=True)
    from headway.runtime.sft import sft

    with placing(config, given):
        return sft(resolved, config_path=config)
