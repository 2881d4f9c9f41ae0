"""headway resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, overrides_argument, run_argument, view_option
from headway.telemetry.supervised import is_supervised

if TYPE_CHECKING:
    from pathlib import Path

    from headway.telemetry.settings import Choice


@click.command("resume")
@run_argument
@overrides_argument
@view_option
def command(run: Path, overrides: tuple[str, ...], view: Choice | None) -> int:
    r"""Go on with a run from its last checkpoint.

    RUN is the run's directory. Its newest whole checkpoint is taken; a damaged one is passed over for the one
    before it. Nothing that finished is lost: rollouts that were finished and not yet trained are used, and
    nothing is trained twice. A complete run goes on when what it ended by is lifted.

    KEY=VALUE changes a setting from here on, also for later resumes; KEY= takes the default again. The change
    is in the journal and in the report; the run's config.toml stays as the run began. What exists already and
    rests on a setting keeps it: the model, the environment and its arguments, the seed, the form of the
    trained weights, the run's name and place. Those are refused by name.

    A supervised run of `headway sft` goes on with the same data in the same order, to the same weights.

    \b
    Examples:
      headway resume runs/quickstart
      headway resume runs/quickstart stop.steps=200 trainer.learning_rate=1e-4
      headway resume runs/sft sft.epochs=5
    """
    if is_supervised(run):
        from headway.runtime.sft import resume_sft

        with naming(run):
            return resume_sft(run, overrides)
    check_run(run)
    from headway.runtime.resume import resume

    with naming(run):
        return resume(run, overrides, view=view)
