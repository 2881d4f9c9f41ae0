"""headway compare."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headway.cli import complete
from headway.cli.arguments import check_run, naming
from headway.cli.output import until_nobody_reads


@click.command("compare")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), shell_complete=complete.runs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all of it.")
def command(runs: tuple[Path, ...], as_json: bool) -> int:
    r"""Compare runs of one environment, with intervals.

    RUNS are directories of runs. Shown are reward against trained rollouts, wall time and cost, as a straight
    line over their logarithm; rates, the trainer's wait, staleness, discards. Each number has a 95 % interval
    of its own run, and what differs from the first run beyond the intervals is marked: of these runs, for one
    run says nothing of another seed.

    \b
    Examples:
      headway compare runs/quickstart runs/sync
      headway compare runs/quickstart runs/sync --json
    """
    from headway.matching.advice.reading import Reading
    from headway.matching.compare import compare
    from headway.matching.compare_text import comparison_text
    from headway.telemetry.journal import read_journal

    found: list[tuple[str, Reading]] = []
    for run in runs:
        check_run(run)
    for run in runs:
        with naming(run):
            found.append((run.resolve().name, Reading.of(read_journal(run))))
    with until_nobody_reads():
        comparison = compare(found)
        if as_json:
            click.echo(json.dumps(comparison.to_plain(), indent=2, allow_nan=False, default=str))
        else:
            click.echo(comparison_text(comparison), nl=False)
    return 0
