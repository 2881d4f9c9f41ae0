"""A command group whose commands are modules, imported when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from headway.core.near import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping


class LazyGroup(click.Group):
    """Commands by name, each a module below headway.cli whose `command` is the click command.

    Args:
        commands: command name -> (module name, line of the listing). The line stands here so that the
            listing imports no command; a test holds it equal to the command's own.
        attributes: click's own.
    """

    def __init__(self, *, lazy_commands: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, None for an unknown name."""
        if cmd_name not in self.lazy_commands:
            return None
        module = importlib.import_module(f"headway.cli.{self.lazy_commands[cmd_name][0]}")
        command: click.Command = module.command
        if (
            command.help is not None
        ):  # a raw docstring spells click's mark for text that is not to be rewrapped
            command.help = command.help.replace("\\b\n", "\b\n")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; an unknown one is a usage error with a near miss."""
        if args and args[0] not in self.lazy_commands and not args[0].startswith("-"):
            guess = did_you_mean(nearest(args[0], self.lazy_commands))
            hint = guess or "The commands are " + ", ".join(self.lazy_commands) + "."
            ctx.fail(f"There is no command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listing from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.lazy_commands.items()])
