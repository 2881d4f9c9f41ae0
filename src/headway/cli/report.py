"""headway report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.cli.output import until_nobody_reads
from headway.core.errors import RunDirectoryError, UserError
from headway.telemetry.supervised import is_supervised, read_supervised

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.telemetry.page.collect import PageData
    from headway.telemetry.rollout_record import RolloutRecord
    from headway.telemetry.rollout_select import Selection

PER_SELECTION = 3  # rollouts of each kind in the page


@click.command("report")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, keyed by metric name.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one page with plots, tables and some rollouts, which needs no network and no other file. "
    "Takes the extra `headway[report]`.",
)
@click.option(
    "--tensorboard",
    "events",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the series of steps and evaluations as events for TensorBoard into this directory. Takes "
    "the extra `headway[tensorboard]`.",
)
def command(run: Path, as_json: bool, page: Path | None, events: Path | None) -> int:
    r"""Show what a run did and what it learned.

    Everything is derived from the journal of RUN; a run that is still going, or that died, can be reported
    too. With --html or --tensorboard it writes files and prints where they are, instead of the report. A
    supervised run of `headway sft` has a shorter report; of an evaluation of `headway eval` it shows the
    result again.

    \b
    Examples:
      headway report runs/quickstart
      headway report runs/quickstart --json
      headway report runs/quickstart --html report.html
      headway report runs/quickstart --tensorboard events
    """
    if is_supervised(run):
        return _supervised(run, as_json, page is not None or events is not None)
    check_run(run)
    if as_json and (page is not None or events is not None):
        raise click.UsageError("Give --json alone: with --html or --tensorboard nothing else is printed.")
    with naming(run), until_nobody_reads():
        if page is not None:
            _write_page(run, page)
        if events is not None:
            _write_events(run, events)
        if page is None and events is None:
            _print(run, as_json)
    return 0


def _print(run: Path, as_json: bool) -> None:
    from headway.matching.advice.reading import Reading
    from headway.matching.advise import advice_of
    from headway.matching.advise_text import findings_of
    from headway.telemetry.journal import read_journal
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.report import report_json, report_text

    journal = read_journal(run)
    if as_json:
        click.echo(report_json(RunMetrics.of(journal).summary()))
        return
    reading = Reading.of(journal)
    metrics = reading.metrics
    if metrics.facts.only_evaluates and metrics.steps.evals:
        _print_evaluation(run)
        return
    click.echo(report_text(reading.summary, metrics.series(), findings_of(advice_of(reading))))


def _print_evaluation(run: Path) -> None:
    from headway.runtime.evaluate import results_of
    from headway.runtime.trained import read_run
    from headway.telemetry.evaluation_report import evaluation_text

    found = read_run(run)
    click.echo(evaluation_text(results_of(found, found.evaluations.ended[-1])), nl=False)


def _write_events(run: Path, folder: Path) -> None:
    from headway.telemetry.journal import read_journal
    from headway.telemetry.tensorboard import convert

    steps = convert(read_journal(run), folder)
    click.echo(f"{folder}: {steps:,} steps")


def _write_page(run: Path, file: Path) -> None:
    from headway.config.compared import compared
    from headway.matching.advice.reading import Reading
    from headway.matching.advise import advice_of
    from headway.matching.advise_text import findings_of
    from headway.telemetry.journal import read_journal
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.page.parts import SettingRow
    from headway.telemetry.page.render import plotly_js, render
    from headway.telemetry.page.write import check_target, write_page
    from headway.telemetry.rollout_table import RolloutTable

    check_target(file)
    plotly_js()  # missing: say so before a long journal is read
    journal = read_journal(run)
    data, table = PageData(journal.header), RolloutTable()
    reading = Reading(journal.header, data.metrics)
    for record in journal:
        data.feed(record)
        reading.feed(record)
        table.feed(record)
    began = {row.key: row.value for row in compared(data.header.config)}
    settings: list[SettingRow] = []
    for row in compared(data.config):
        before = began.get(row.key, "not set")
        changed = before if before != row.value else None
        settings.append(SettingRow(row.key, row.value, row.default, row.differs, row.doc, changed))
    transcripts = _transcripts(run, table.records())
    name, state = run.resolve().name, _state(run, data)
    page = render(
        data,
        name=name,
        settings=settings,
        state=state,
        transcripts=transcripts,
        findings=findings_of(advice_of(reading)),
    )
    size = write_page(file, page)
    click.echo(f"{file}: {size / 1e6:.1f} MB")


def _transcripts(run: Path, records: list[RolloutRecord]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return a few rollouts of each kind; one that is of two kinds stands at the first."""
    from headway.runtime.transcripts import transcripts_of
    from headway.telemetry.rollout_select import select

    chosen: dict[str, list[RolloutRecord]] = {}
    taken: set[str] = set()
    for title, selection in _selections():
        found = [record for record in select(records, selection) if record.rollout not in taken]
        chosen[title] = found[:PER_SELECTION]
        taken.update(record.rollout for record in chosen[title])
    wanted = [record for found in chosen.values() for record in found]
    by_name = {found["rollout"]: found for found in transcripts_of(run, wanted)}
    return [(title, [by_name[record.rollout] for record in found]) for title, found in chosen.items()]


def _selections() -> Iterator[tuple[str, Selection]]:
    from headway.telemetry.rollout_select import Selection

    yield "Worst rewards", Selection("worst", purpose="train")
    yield "Best rewards", Selection("best", purpose="train")
    yield "Longest", Selection("longest", purpose="train")
    yield "Failed", Selection(failed=True)
    yield "Newest of an evaluation", Selection(purpose="eval", states=("evaluated",))


def _state(run: Path, data: PageData) -> str:
    """Return what a run without an outcome is: running, killed, or unfinished where nothing tells."""
    from headway.runtime.directory import last_life

    if data.metrics.outcome != "unfinished":
        return "unfinished"
    try:
        return "unfinished" if last_life(run) is None else "killed"
    except RunDirectoryError:
        return "running"


def _supervised(run: Path, as_json: bool, files: bool) -> int:
    from headway.telemetry.supervised_report import supervised_json, supervised_text

    if files:
        raise UserError(
            "--html and --tensorboard are of runs with a journal, and this is a supervised run",
            value=str(run),
            remedy="Leave them out: its report is text, and --json is all of it",
        )
    with naming(run), until_nobody_reads():
        found = read_supervised(run)
        click.echo(supervised_json(found) if as_json else supervised_text(found), nl=as_json)
    return 0
