"""headway env."""

from __future__ import annotations

import click

from headway.cli.lazy import LazyGroup

COMMANDS = {
    "list": ("env_list", "List the environments."),
    "install": ("env_install", "Install a package made for verifiers."),
    "make": ("env_make", "Make the tasks of an environment."),
    "new": ("env_new", "Write an environment to begin with."),
    "check": ("env_check", "Check what Headway takes for granted of an environment."),
    "try": ("env_try", "Run one rollout and show it turn by turn."),
}


@click.command("env", cls=LazyGroup, lazy_commands=COMMANDS)
def command() -> None:
    """List, write, check and try environments."""
