"""headway sandbox bench."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from headway.cli.output import until_nobody_reads
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = ("PROVIDER", "CREATE", "FIRST OUTPUT", "EXEC", "DESTROY", "PLAIN", "CREATES/S")
_MAX_SECONDS = 3600
_TIMES = ("create_ms", "first_ms", "exec_ms", "destroy_ms", "plain_ms")


@click.command("bench")
@click.option("--provider", help="One provider; by default all that work here.")
@click.option("--seconds", default=3.0, show_default=True, help="Time for each provider.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(provider: str | None, seconds: float, as_json: bool) -> int:
    r"""Measure how fast sandboxes are here.

    Median and 99th percentile, in milliseconds: of making one, its first command (/bin/echo), the next one,
    and its end, beside a plain subprocess; and how many are made, used and ended in a second, eight at once.
    Exit code 2: no provider works, or the one that was named does not.

    \b
    Examples:
      headway sandbox bench
      headway sandbox bench --provider local --seconds 10
    """
    from headway.cli.sandbox_ls import columns
    from headway.sandbox.pools import PROVIDERS

    if provider not in (None, *PROVIDERS):
        raise click.UsageError(f"there is no provider {provider}; there are {', '.join(PROVIDERS)}.")
    if not 0 < seconds <= _MAX_SECONDS:
        raise click.UsageError(f"--seconds must be above 0 and at most {_MAX_SECONDS} (got {seconds:g}).")
    found = {
        name: asyncio.run(_bench(name, seconds)) for name in (PROVIDERS if provider is None else (provider,))
    }
    measured = {name: one for name, one in found.items() if isinstance(one, dict)}
    with until_nobody_reads():
        if as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            rows = [
                (name, *map(_cell(one), _TIMES), f"{one['creates_per_s']:.0f}")
                for name, one in measured.items()
            ]
            for line in columns([_HEAD, *rows]) if rows else ():
                click.echo(line)
            for name in (name for name in found if name not in measured):
                click.echo(f"{name}: {found[name]}")
    return 0 if measured else 2


def _cell(one: dict[str, float]) -> Callable[[str], str]:
    return lambda name: f"{one[f'{name}_p50']:.1f} / {one[f'{name}_p99']:.1f}"


async def _bench(name: str, seconds: float) -> dict[str, float] | str:
    """Return what was measured, or why nothing was."""
    from headway.sandbox.leases import own_label
    from headway.sandbox.measure import AT_ONCE, measure
    from headway.sandbox.pools import make_pool, settings_of

    try:
        limits = {"max_live": AT_ONCE + 1, "max_starting": AT_ONCE}
        pool = make_pool(replace(settings_of(name), **limits), own_label("bench"), warm=0)
        await pool.preflight()
        return (await measure(pool, seconds)).summary()
    except HeadwayError as error:
        return str(error)
