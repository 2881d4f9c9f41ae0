"""headway env make."""

from __future__ import annotations

import click

from headway.cli.lazy import LazyGroup

COMMANDS = {"bugfix": ("env_make_bugfix", "Make bug-fixing tasks from packages.")}


@click.command("make", cls=LazyGroup, lazy_commands=COMMANDS)
def command() -> None:
    """Make the tasks of an environment."""
