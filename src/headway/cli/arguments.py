"""Arguments that several commands share."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import complete
from headway.core.errors import RunDirectoryError, UserError
from headway.telemetry.supervised import is_supervised

if TYPE_CHECKING:
    from collections.abc import Generator

run_argument = click.argument("run", type=click.Path(path_type=Path), shell_complete=complete.runs)
overrides_argument = click.argument(
    "overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete.overrides
)
view_option = click.option(
    "--view",
    type=click.Choice(["auto", "live", "lines"]),
    help="How the run shows itself, in place of telemetry.view: a frame below the lines, or lines alone.",
)


def full_override(override: str) -> str:
    """Return an override with the section that a bare argument means: the environment's arguments."""
    return override if "." in override.partition("=")[0] else f"environment.args.{override}"


def check_run(run: Path) -> Path:
    """Return the directory of a run; raise RunDirectoryError when there is no run in it.

    A supervised run has no journal, and is refused with its own words: commands that take one ask
    `is_supervised` first.
    """
    if is_supervised(run):
        rule = (
            "must be a run of headway train: this one is a supervised run, of headway sft, with no rollouts"
        )
        remedy = f"Its model is in {run / 'model'}; `headway report` and `headway resume` take it"
        raise RunDirectoryError(rule, value=str(run), remedy=remedy)
    if any(run.glob("journal*")):
        return run
    rule = "must be the directory of a run, with its journal"
    remedy = "headway train prints the directory first; by default runs are in runs/"
    if run.is_dir() and (inner := sorted(path.parent for path in run.glob("*/journal*"))):
        remedy = f"Did you mean {inner[-1]}?"
    raise RunDirectoryError(rule, value=str(run), remedy=remedy)


@contextmanager
def naming(run: Path) -> Generator[None]:
    """Add the run directory to any fault that is raised inside."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f"run directory: {run}")
        raise
