"""headway resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, run_argument

if TYPE_CHECKING:
    from pathlib import Path


@click.command("resume")
@run_argument
def command(run: Path) -> int:
    r"""Go on with a run from its last checkpoint.

    RUN is the run's directory. Nothing that finished is lost: rollouts that were finished and not yet
    trained are used, and the settings are those of the run.

    \b
    Example:
      headway resume runs/quickstart
    """
    check_run(run)
    from headway.runtime.resume import resume

    with naming(run):
        return resume(run)
