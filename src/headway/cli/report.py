"""headway report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.core.errors import RunDirectoryError
from headway.telemetry.supervised import is_supervised, read_supervised

if TYPE_CHECKING:
    from headway.telemetry.page.collect import PageData


@click.command("report")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, keyed by metric name.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one page with plots and tables, which needs nothing beside it; extra `report`.",
)
def command(run: Path, as_json: bool, page: Path | None) -> int:
    r"""Show what a run did and what it learned.

    Everything is derived from the journal of RUN; a run that is still going, or that died, can be reported
    too. A supervised run of `headway sft` has a shorter report, from its own record.

    \b
    Examples:
      headway report runs/quickstart
      headway report runs/quickstart --json
      headway report runs/quickstart --html report.html
    """
    if is_supervised(run):
        return _supervised(run, as_json, page)
    check_run(run)
    if as_json and page is not None:
        raise click.UsageError("--json prints and --html writes a file: give one of them.")
    with naming(run):
        if page is not None:
            return _write_page(run, page)
        from headway.telemetry.journal import read_journal
        from headway.telemetry.metrics import RunMetrics
        from headway.telemetry.report import report_json, report_text

        metrics = RunMetrics.of(read_journal(run))
        summary = metrics.summary()
        click.echo(report_json(summary) if as_json else report_text(summary, metrics.series()))
    return 0


def _supervised(run: Path, as_json: bool, page: Path | None) -> int:
    if page is not None:
        rule = "--html shows a run of headway train, and this is a supervised run, of headway sft"
        raise RunDirectoryError(rule, value=str(run), remedy="Leave --html out; --json is for programs")
    from headway.telemetry.supervised_report import supervised_json, supervised_text

    with naming(run):
        found = read_supervised(run)
        click.echo(supervised_json(found) if as_json else supervised_text(found), nl=as_json)
    return 0


def _write_page(run: Path, file: Path) -> int:
    from headway.config.compared import compared
    from headway.telemetry.journal import read_journal
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.page.parts import SettingRow
    from headway.telemetry.page.render import plotly_js, render
    from headway.telemetry.page.write import check_target, write_page

    check_target(file)
    plotly_js()  # missing: say so before a long journal is read
    data = PageData.of(read_journal(run))
    rows = [
        SettingRow(row.key, row.value, row.default, row.differs, row.doc)
        for row in compared(data.header.config)
    ]
    text = render(data, name=run.resolve().name, settings=rows, state=_state(run, data))
    size = write_page(file, text)
    click.echo(f"{file}: {size / 1e6:.1f} MB")
    return 0


def _state(run: Path, data: PageData) -> str:
    """Return what a run without an outcome is."""
    from headway.core.errors import RunDirectoryError
    from headway.runtime.directory import last_life

    if data.metrics.outcome != "unfinished":
        return "unfinished"
    try:
        return "unfinished" if last_life(run) is None else "killed"
    except RunDirectoryError:
        return "running"
