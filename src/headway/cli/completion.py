"""headway completion."""

from __future__ import annotations

import click

from headway.cli.output import until_nobody_reads

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    r"""Let the shell complete commands, keys and runs.

    Prints a script for SHELL: bash, zsh or fish. Evaluated in the shell's start file, it completes commands,
    options, config keys with their choices, environments, and the runs in runs/.

    \b
    Examples:
      eval "$(headway completion bash)"                                  in ~/.bashrc
      eval "$(headway completion zsh)"                                   in ~/.zshrc
      headway completion fish > ~/.config/fish/completions/headway.fish  once
    """
    from click.shell_completion import get_completion_class

    from headway.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:  # a choice that click itself does not know
        raise click.UsageError(f"There is no completion for {shell}.")
    with until_nobody_reads():
        click.echo(kind(cli, {}, "headway", "_HEADWAY_COMPLETE").source())
    return 0
