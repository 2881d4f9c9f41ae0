"""headway eval-now."""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli.arguments import check_run, naming, run_argument


@click.command("eval-now")
@run_argument
def command(run: Path) -> int:
    r"""Ask a run that goes on for an evaluation now.

    RUN is its directory. The newest version is evaluated as [eval] says, beside training and in addition to
    the evaluations that are due anyway. The result appears in the run's lines, `headway watch` and
    `headway report`.

    \b
    Example:
      headway eval-now runs/quickstart
    """
    check_run(run)
    from headway.runtime.control import ask

    with naming(run):
        for line in ask(run, "evaluate", ()):
            click.echo(line)
    return 0
