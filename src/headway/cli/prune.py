"""headway prune."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, overrides_argument, run_argument
from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from pathlib import Path


@click.command("prune")
@run_argument
@overrides_argument
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
def command(run: Path, overrides: tuple[str, ...], dry_run: bool) -> int:
    r"""Free disk space: remove what a run need not keep.

    RUN is the directory of a run that is over or was stopped. Its own policy is applied, [retention] and
    checkpoint.keep, keep_every_steps and keep_best; KEY=VALUE changes it for this once. Whatever a resume
    needs stays: the newest undamaged checkpoint, and the rollouts that are still to be trained. Journal and
    summary stay too, so that report and replay work as before; `headway rollouts` shows the transcripts that
    are left.

    \b
    Examples:
      headway prune runs/quickstart --dry-run
      headway prune runs/quickstart checkpoint.keep=1 retention.payloads=none
      headway prune runs/quickstart retention.payloads=20 retention.sample_groups=0
    """
    check_run(run)
    from headway.runtime.prune import plan_text, prune

    with naming(run):
        plan = prune(run, overrides, dry_run=dry_run)
    with until_nobody_reads():
        click.echo(plan_text(run, plan, dry_run=dry_run))
    return 0
