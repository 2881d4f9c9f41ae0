"""headway report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, run_argument

if TYPE_CHECKING:
    from pathlib import Path


@click.command("report")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, keyed by metric name.")
def command(run: Path, as_json: bool) -> int:
    r"""Show what a run did and what it learned.

    Everything is derived from the run's journal; a run that is still going, or that died, can be reported
    too. Metrics are explained in docs/metrics.md.

    \b
    Examples:
      headway report runs/quickstart
      headway report runs/quickstart --json
    """
    check_run(run)
    from headway.telemetry.report import report_json, report_text

    with naming(run):
        click.echo(json.dumps(report_json(run), indent=2) if as_json else report_text(run))
    return 0
