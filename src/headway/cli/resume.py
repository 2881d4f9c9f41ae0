"""headway resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, overrides_argument, run_argument
from headway.telemetry.supervised import is_supervised

if TYPE_CHECKING:
    from pathlib import Path


@click.command("resume")
@run_argument
@overrides_argument
def command(run: Path, overrides: tuple[str, ...]) -> int:
    r"""Go on with a run from its last checkpoint.

    RUN is the run's directory. Nothing that finished is lost: rollouts that were finished and not yet
    trained are used. KEY=VALUE changes a setting from now on; what checkpoints and queued rollouts rest on
    (model, environment, seed, form of the trained weights) may not change. A complete run goes on when its
    limit is lifted. A supervised run of `headway sft` goes on with the same data in the same order.

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
        return resume(run, overrides)
