"""headway stop."""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli.arguments import check_run, naming, run_argument


@click.command("stop")
@run_argument
@click.option("--wait", is_flag=True, help="Return when its process is gone.")
def command(run: Path, wait: bool) -> int:
    r"""Stop a run that goes on, in order.

    RUN is its directory. It finishes its step, writes a checkpoint and ends; `headway resume` goes on. Its
    outcome is `interrupted`, as after Ctrl-C; but the command that drives it exits with 0, for nothing was
    broken off.

    \b
    Examples:
      headway stop runs/quickstart
      headway stop runs/quickstart --wait && headway resume runs/quickstart queue.bound=4
    """
    check_run(run)
    from headway.runtime.control import STOP, ask, wait_for_the_end

    with naming(run):
        for line in ask(run, "stop", (STOP,)):
            click.echo(line)
        if wait:
            wait_for_the_end(run)
    return 0
