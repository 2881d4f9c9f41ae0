"""headway replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.arguments import check_run, naming, run_argument

if TYPE_CHECKING:
    from pathlib import Path


@click.command("replay")
@run_argument
@click.option("--verify", is_flag=True, help="Compare every command; exit code 1 at the first difference.")
def command(run: Path, verify: bool) -> int:
    r"""Check a run's journal against the scheduler.

    Feeds the recorded events of RUN to a fresh scheduler and compares the commands it gives with the recorded
    ones, byte for byte. No model, sandbox or process is started.

    \b
    Example:
      headway replay runs/quickstart --verify
    """
    if not verify:
        raise click.UsageError("Add --verify: comparing is all that replay does.")
    check_run(run)
    from headway.runtime.replay import verify as verify_run

    with naming(run):
        result = verify_run(run)
    click.echo(result.text)
    return 0 if result.ok else 1
