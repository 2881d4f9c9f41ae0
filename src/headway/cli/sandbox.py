"""headway sandbox."""

from __future__ import annotations

import click

from headway.cli.lazy import LazyGroup

COMMANDS = {
    "ls": ("sandbox_ls", "List the sandboxes of all runs on this machine."),
    "reap": ("sandbox_reap", "End the sandboxes that dead processes left."),
    "check": ("sandbox_check", "Say what each provider of sandboxes holds here."),
    "bench": ("sandbox_bench", "Measure how fast sandboxes are here."),
}


@click.command("sandbox", cls=LazyGroup, lazy_commands=COMMANDS)
def command() -> None:
    """List, end, check and measure sandboxes."""
