"""headway resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, overrides_argument, run_argument, view_option

if TYPE_CHECKING:
    from pathlib import Path

    from headway.telemetry.settings import Choice


@click.command("resume")
@run_argument
@overrides_argument
@view_option
def command(run: Path, overrides: tuple[str, ...], view: Choice | None) -> int:
    r"""Go on with a run from its last checkpoint.

    RUN is the run's directory. Nothing that finished is lost: rollouts that were finished and not yet
    trained are used. KEY=VALUE changes a setting from now on; what checkpoints and queued rollouts rest on
    (model, environment, seed, form of the trained weights) may not change. A complete run goes on when its
    limit is lifted.

    \b
    Examples:
      headway resume runs/quickstart
      headway resume runs/quickstart stop.steps=200 trainer.learning_rate=1e-4
    """
    check_run(run)
    from headway.runtime.resume import resume

    with naming(run):
        return resume(run, overrides, view=view)
