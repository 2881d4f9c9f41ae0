"""headway set."""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli.arguments import check_run, naming, overrides_argument, run_argument


@click.command("set")
@run_argument
@overrides_argument
def command(run: Path, overrides: tuple[str, ...]) -> int:
    r"""Change settings of a run that goes on.

    RUN is its directory. KEY=VALUE holds from now on, for later lives too, and stands in the journal. It is
    checked together with all other settings, and all changes are made or none. What the scheduler decides by
    can change ([queue], [guard], [stop], [eval], [concurrency] and the like, and generator.temperature); the
    rest is refused: it takes effect at a resume.

    \b
    Examples:
      headway set runs/quickstart queue.depth=1
      headway set runs/quickstart guard.paused=true
      headway set runs/quickstart stop.steps=200 eval.every_steps=20
    """
    if not overrides:
        raise click.UsageError("Say what changes: KEY=VALUE.")
    check_run(run)
    from headway.runtime.control import ask

    with naming(run):
        for line in ask(run, "set", overrides):
            click.echo(line)
    return 0
