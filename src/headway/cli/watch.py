"""headway watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.cli.output import until_nobody_reads
from headway.telemetry.supervised import is_supervised

if TYPE_CHECKING:
    from pathlib import Path


@click.command("watch")
@run_argument
@click.option("--once", is_flag=True, help="Print one frame as text, and stop.")
@click.option("--lines", is_flag=True, help="Plain lines, as headway train prints them into a pipe.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=0.5,
    show_default=True,
    help="Seconds between two looks at the run.",
)
def command(run: Path, once: bool, lines: bool, every: float) -> int:
    r"""Show what a run does at this moment.

    RUN is the directory of a run that any process drives, or drove: everything shown comes from its journal.
    Shows the view that `headway train` has on a terminal until the run ends; Ctrl-C leaves, and the run goes
    on. Of a run that nobody drives it shows the end, and how it goes on. Into a pipe, all lines of the run.

    \b
    Examples:
      headway watch runs/quickstart
      headway watch runs/quickstart --once
      headway watch runs/quickstart --lines | grep warning
    """
    if is_supervised(run) or not (run / "payloads").is_dir():  # a run that has just begun has no journal yet
        check_run(run)
    from headway.runtime.watch import watch

    with naming(run), until_nobody_reads():
        return watch(run, once=once, lines=lines, every_s=every)
    return 0
