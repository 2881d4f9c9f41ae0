"""headway sandbox ls."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.sandbox.census import Seen

_HEAD = ("SANDBOX", "RUN", "PROVIDER", "IMAGE", "STATE", "AGE", "OWNER")


@click.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(as_json: bool) -> int:
    r"""List the sandboxes of all runs on this machine.

    Those that your processes made and did not end. The state is starting; ready, made ahead and not used yet;
    live; ending, when its end failed and is tried again; silent, when the owner lives and renews nothing
    for a minute; left over, when its owner died; gone, when it ended with its owner and only its lease is
    left.

    \b
    Examples:
      headway sandbox ls
      headway sandbox ls --json
    """
    from headway.sandbox.census import census

    found = census()
    with until_nobody_reads():
        if as_json:
            click.echo(json.dumps([asdict(seen) for seen in found], indent=2))
            return 0
        for line in columns([_HEAD, *map(_row, found)]) if found else ():
            click.echo(line)
        click.echo(_last_line(found))
    return 0


def _row(seen: Seen) -> tuple[str, ...]:
    owner = f"{seen.owner_pid}" if seen.owner_alive else f"{seen.owner_pid}, dead"
    return seen.sandbox, seen.run, seen.provider, seen.image or "-", seen.state, age(seen.age_s), owner


def _last_line(found: Sequence[Seen]) -> str:
    from headway.sandbox.census import LEFT_OVER

    left = sum(seen.state == LEFT_OVER for seen in found)
    if not found:
        return "no sandboxes"
    text = f"{sum(seen.owner_alive for seen in found)} of live processes, {left} left over"
    return f"{text}; `headway sandbox reap --all-dead` ends those" if left else text


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with their cells below one another."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def age(seconds: float) -> str:
    """Return a time in its largest fitting unit."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
