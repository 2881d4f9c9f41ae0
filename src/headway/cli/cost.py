"""headway cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from headway.cli.arguments import overrides_argument
from headway.cli.output import until_nobody_reads


@click.command("cost")
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@overrides_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(spec: Path | None, overrides: tuple[str, ...], as_json: bool) -> int:
    r"""Say what an hour of a GPU and a million tokens cost.

    Without SPEC: the total cost of owning one accelerator, from the keys of [cost] (docs/spec.md); KEY=VALUE
    sets one. With SPEC: also what the planned run costs, with its denominators, beside a managed service's
    list prices. SPEC may be the directory of a run that has taken place: then its own journal says what it
    trained.

    \b
    Examples:
      headway cost
      headway cost cost.usd_per_kwh=0.15 cost.years=4.0
      headway cost examples/cases/case1.toml
      headway cost runs/quickstart cost.used_fraction=0.8
    """
    from headway.matching.cost_text import cost_plain, cost_text

    if spec is not None and "=" in str(spec):
        spec, overrides = None, (str(spec), *overrides)
    found: dict[str, Any] = cost_plain(spec, overrides)
    with until_nobody_reads():
        click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else cost_text(found))
    return 0
