"""Generates docs/cli.md from the commands themselves: python -m headway.cli.reference > docs/cli.md."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from headway.cli.lazy import LazyGroup
from headway.cli.main import EXIT_CODES, cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# Command line

Every command, as `headway COMMAND --help` shows it. This page is generated from the commands themselves:
`python -m headway.cli.reference > docs/cli.md`.

`python -m headway` is the same command. `headway --version` prints the version, and
[shell completion](#headway-completion) completes commands, options, config keys and runs.

## Exit codes

| Code | Meaning |
| --- | --- |
"""

_PREFORMATTED = "\b"  # click's mark for a block that is not to be rewrapped


def leaf_commands(group: LazyGroup = cli, path: str = "headway") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with the words that call it, in the order of the listing."""
    for name in group.lazy_commands:
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            yield from leaf_commands(command, f"{path} {name}")
        elif command is not None:
            yield f"{path} {name}", command


def current_page() -> str:
    """Return the page as the code stands now, as Markdown."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return "\n".join([_INTRODUCTION + codes, *(_section(path, command) for path, command in leaf_commands())])


def _section(path: str, command: click.Command) -> str:
    with click.Context(command, info_name=path) as context:
        pieces = " ".join(command.collect_usage_pieces(context))
        options = [
            record
            for parameter in command.get_params(context)
            if isinstance(parameter, click.Option) and "--help" not in parameter.opts
            if (record := parameter.get_help_record(context)) is not None
        ]
    parts = [f"## {path}", f"    {path} {pieces}", *_blocks(command.help or "")]
    if options:
        parts.append("\n".join(f"- `{names}`: {text}" for names, text in options))
    return "\n\n".join(parts) + "\n"


def _blocks(text: str) -> Iterator[str]:
    """Yield a help text's blocks as Markdown: paragraphs on one line, what is indented as code."""
    for block in cleandoc(text).split("\n\n"):
        lines = block.strip("\n").split("\n")
        if lines[0] != _PREFORMATTED:
            yield " ".join(line.strip() for line in lines)
            continue
        prose = [line for line in lines[1:] if not line.startswith(" ")]
        code = [f"    {line.strip()}" for line in lines[1:] if line.startswith(" ")]
        yield "\n".join(prose)
        yield "\n".join(code)


if __name__ == "__main__":
    print(current_page(), end="")
