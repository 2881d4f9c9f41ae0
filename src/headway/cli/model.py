"""headway model."""

from __future__ import annotations

import click

from headway.cli.lazy import LazyGroup

COMMANDS = {"fetch": ("model_fetch", "Bring a model into the cache.")}


@click.command("model", cls=LazyGroup, lazy_commands=COMMANDS)
def command() -> None:
    """Fetch models."""
