"""headway sandbox reap."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import complete
from headway.cli.output import until_nobody_reads
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from headway.sandbox.leases import Book


@dataclass(slots=True)
class _Done:
    ended: list[str] = field(default_factory=list[str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    spared: dict[int, int] = field(default_factory=dict[int, int])  # live owner -> its sandboxes


@click.command("reap")
@click.argument("run", required=False, type=click.Path(path_type=Path), shell_complete=complete.runs)
@click.option("--all-dead", is_flag=True, help="Those of every run.")
@click.option("--force", is_flag=True, help="Those of processes that live, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Path | None, all_dead: bool, force: bool, as_json: bool) -> int:
    r"""End the sandboxes that dead processes left.

    RUN is a run's directory, or the name that headway sandbox ls shows. A run does this at its start by
    itself, for all runs. Sandboxes of processes that live are spared; --force takes away what they work on,
    and the run counts them as lost. Exit code 1: something could not be ended.

    \b
    Examples:
      headway sandbox reap --all-dead
      headway sandbox reap runs/quickstart
    """
    if (run is None) == (not all_dead):
        raise click.UsageError("name a run, or give --all-dead.")
    done = asyncio.run(_reap(None if run is None else run.name if run.is_dir() else str(run), force=force))
    with until_nobody_reads():
        if as_json:
            plain = {"ended": done.ended, "failed": done.failed, "spared": sum(done.spared.values())}
            click.echo(json.dumps(plain, indent=2))
        else:
            _tell(done)
    return 1 if done.failed else 0


def _tell(done: _Done) -> None:
    for name in done.ended:
        click.echo(f"ended {name}")
    for name, why in done.failed.items():
        click.echo(f"{name} is still there: {why}")
    for pid, num in done.spared.items():
        click.echo(f"spared {num} of process {pid}, which lives; --force ends them")
    click.echo(f"{len(done.ended)} ended, {len(done.failed)} failed, {sum(done.spared.values())} spared")


async def _reap(name: str | None, *, force: bool) -> _Done:
    from headway.sandbox.census import is_life_of
    from headway.sandbox.leases import read_books
    from headway.sandbox.pools import provider_of
    from headway.sandbox.sweep import sweep

    done = _Done()
    books = [book for book in read_books() if name is None or is_life_of(book.owner.run, name)]
    swept = await sweep(provider_of, runs={book.owner.run for book in books if not book.alive})
    done.ended, done.failed = swept.ended, swept.failed
    for book in books:
        if book.alive and not force:
            done.spared[book.owner.pid] = len(book.leases)
        elif book.alive:
            await _take_away(book, done)
    return done


async def _take_away(book: Book, done: _Done) -> None:
    """End what a live owner has; only what lies outside its process can be."""
    from headway.sandbox.pools import provider_of

    for lease in book.leases.values():
        name = lease.name or lease.id
        try:
            if await provider_of(book.owner).end(lease.id, lease.labels):
                done.ended.append(name)
            else:
                done.failed[name] = f"it lives in process {book.owner.pid} and ends with it"
        except (HeadwayError, OSError) as error:
            done.failed[name] = str(error)
