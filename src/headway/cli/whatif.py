"""headway whatif."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from headway.cli import complete
from headway.cli.arguments import check_run, naming, run_argument
from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def say_on_terminal() -> Callable[[str], None]:
    """Return what shows a line that the next one replaces, on a terminal alone."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: click.echo(f"\r{line}", err=True, nl=False)


@click.command("whatif")
@run_argument
@click.argument(
    "overrides", nargs=-1, required=True, metavar="KEY=VALUE...", shell_complete=complete.overrides
)
@click.option(
    "--seeds",
    default=5,
    type=click.IntRange(1, 100),
    help="Simulations of each of the two runs; an interval takes 3.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, keyed by metric name.")
def command(run: Path, overrides: tuple[str, ...], seeds: int, as_json: bool) -> int:
    r"""Predict a run's rates with other settings.

    Simulates RUN again with its own recorded lengths, durations and rewards, first unchanged, which shows how
    far the model is from what was measured, then with each KEY=VALUE changed. What never ran is drawn from
    models that are fitted to the run, and counted. It predicts rates and staleness, never learning: settings
    that change what the policy learns are refused. Beside settings of the run it takes timings.* and fleet.*
    (docs/matching.md), and workload.tool_s, workload.answer_tokens and workload.score_s, which scale what
    was recorded.

    \b
    Examples:
      headway whatif runs/quickstart queue.bound=4
      headway whatif runs/quickstart queue.batch_size=64 queue.group_size=16
      headway whatif runs/quickstart generator.replicas=2 workload.tool_s=0.2 --json
    """
    check_run(run)
    from headway.matching.whatif import whatif
    from headway.matching.whatif_text import whatif_json, whatif_text
    from headway.telemetry.journal import read_journal

    with naming(run), until_nobody_reads():
        progress = say_on_terminal()
        found = whatif(read_journal(run), overrides, seeds, progress)
        progress("\033[K\r")
        click.echo(
            json.dumps(whatif_json(found), allow_nan=False) if as_json else whatif_text(found, str(run))
        )
    return 0
