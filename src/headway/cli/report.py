"""headway report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.telemetry.supervised import is_supervised, read_supervised

if TYPE_CHECKING:
    from pathlib import Path


@click.command("report")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, keyed by metric name.")
def command(run: Path, as_json: bool) -> int:
    r"""Show what a run did and what it learned.

    Everything is derived from the run's journal; a run that is still going, or that died, can be reported
    too. A supervised run of `headway sft` has a shorter report.

    \b
    Examples:
      headway report runs/quickstart
      headway report runs/quickstart --json
    """
    if is_supervised(run):
        return _supervised(run, as_json)
    check_run(run)
    from headway.telemetry.journal import read_journal
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.report import report_json, report_text

    with naming(run):
        metrics = RunMetrics.of(read_journal(run))
        summary = metrics.summary()
        click.echo(report_json(summary) if as_json else report_text(summary, metrics.series()))
    return 0


def _supervised(run: Path, as_json: bool) -> int:
    from headway.telemetry.supervised_report import supervised_json, supervised_text

    with naming(run):
        found = read_supervised(run)
        click.echo(supervised_json(found) if as_json else supervised_text(found), nl=as_json)
    return 0
