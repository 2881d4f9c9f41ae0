"""headway sandbox check."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from headway.cli.output import until_nobody_reads
from headway.core.clock import stopwatch
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from headway.core.protocols import Guarantee


@click.command("check")
@click.option("--provider", help="One provider; by default all are tried.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(provider: str | None, as_json: bool) -> int:
    r"""Say what each provider of sandboxes holds here.

    One sandbox of each provider is made, used and ended. What it promises on this machine follows, with the
    remedy where a promise is less than enforced. headway check CONFIG does this for a config's provider,
    among much else. Exit code 2: no provider works, or the one that was named does not.

    \b
    Examples:
      headway sandbox check
      headway sandbox check --provider local --json
    """
    from headway.sandbox.census import LEFT_OVER, census
    from headway.sandbox.pools import PROVIDERS

    if provider not in (None, *PROVIDERS):
        raise click.UsageError(f"there is no provider {provider}; there are {', '.join(PROVIDERS)}.")
    found = {name: asyncio.run(_check(name)) for name in (PROVIDERS if provider is None else (provider,))}
    left = sum(seen.state == LEFT_OVER for seen in census())
    with until_nobody_reads():
        if as_json:
            click.echo(json.dumps({"providers": found, "left_over": left}, indent=2))
        else:
            for name, one in found.items():
                _tell(name, one)
            if left:
                click.echo(f"{left} sandboxes are left over: headway sandbox reap --all-dead")
    return 0 if any(one["works"] for one in found.values()) else 2


async def _check(name: str) -> dict[str, Any]:
    from headway.sandbox.leases import own_label
    from headway.sandbox.pools import make_pool, settings_of

    try:
        provider = make_pool(settings_of(name), own_label("check"), warm=0)
        began = stopwatch()
        guarantees = await provider.preflight()
        first_s, began = stopwatch() - began, stopwatch()
        await provider.preflight()
    except HeadwayError as error:
        return {"works": False, "why": error.rule, "remedy": error.remedy}
    return {
        "works": True,
        "first_s": first_s,  # what is built or started once included
        "again_s": stopwatch() - began,
        "guarantees": [_plain(entry) for entry in guarantees],
    }


def _plain(entry: Guarantee) -> dict[str, str]:
    return {"name": entry.name, "level": entry.level, "remedy": entry.remedy}


def _tell(name: str, found: dict[str, Any]) -> None:
    if not found["works"]:
        click.echo(f"{name}: does not work here: {found['why'].rstrip(' .')}; {found['remedy']}".rstrip(" ;"))
        return
    click.echo(f"{name}: works; one made, used and ended in {found['again_s'] * 1e3:.0f} ms")
    by_level: dict[str, list[dict[str, str]]] = {}
    for entry in found["guarantees"]:
        by_level.setdefault(entry["level"], []).append(entry)
    click.echo(f"    enforced: {', '.join(entry['name'] for entry in by_level.pop('enforced', []))}")
    for level, entries in by_level.items():
        for entry in entries:
            click.echo(f"    {level}: {entry['name']}: {entry['remedy']}")
