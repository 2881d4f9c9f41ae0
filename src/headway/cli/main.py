"""Entry of the headway command: which commands there are, and what an error looks like."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING

import click

from headway import __version__
from headway.cli.lazy import LazyGroup
from headway.cli.output import can_print, standard_streams
from headway.core.errors import ConfigError, DiskFullError, HeadwayError, UserError
from headway.core.hooks import place_of_users
from headway.core.storage import is_full, refused
from headway.telemetry.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "check": ("check", "Check a config, its model and this machine before a run."),
    "train": ("train", "Train a model as a config file says, or on a file of data."),
    "sft": ("sft", "Train a model on written conversations (supervised)."),
    "resume": ("resume", "Go on with a run from its last checkpoint."),
    "watch": ("watch", "Show what a run does at this moment."),
    "set": ("set", "Change settings of a run that goes on."),
    "eval-now": ("eval_now", "Ask a run that goes on for an evaluation now."),
    "stop": ("stop", "Stop a run that goes on, in order."),
    "rollouts": ("rollouts", "Look into the rollouts of a run."),
    "simulate": ("simulate", "Simulate a run as a SPEC describes it, with the real scheduler."),
    "plan": ("plan", "Predict what a run will do, what limits it, and what it costs."),
    "cost": ("cost", "Say what an hour of a GPU and a million tokens cost."),
    "report": ("report", "Show what a run did and what it learned."),
    "advise": ("advise", "Say what costs a run time, and what to change."),
    "compare": ("compare", "Compare runs of one environment, with intervals."),
    "eval": ("eval", "Measure a model on an environment's tasks."),
    "export": ("export", "Write a run's trained model for transformers."),
    "replay": ("replay", "Check a run's journal against the scheduler."),
    "calibrate": ("calibrate", "Fit a SPEC to a run: what `headway plan` needs."),
    "whatif": ("whatif", "Predict a run's rates with other settings."),
    "prune": ("prune", "Free disk space: remove what a run need not keep."),
    "model": ("model", "Fetch models."),
    "sandbox": ("sandbox", "List, end, check and measure sandboxes."),
    "env": ("env", "List, write, check and try environments."),
    "completion": ("completion", "Let the shell complete commands, keys and runs."),
}

EXIT_CODES = {
    0: "Done; or ended by `headway stop`, and `headway resume RUN` goes on. "
    "A run that ended as `no_signal`, or that the guard stopped (`guard`), ended by a rule of its "
    "own: scripts look at `outcome` in `headway report RUN --json`.",
    1: "A fault, with its traceback, and the run's directory where there is one. A full disk "
    "(`disk_full`) has one line.",
    2: "Bad input: one line a problem, no traceback. [errors.md](errors.md) lists them all.",
    130: "Interrupted by Ctrl-C or SIGTERM; `headway resume RUN` goes on.",
}


@click.command(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`headway COMMAND --help` says more, with examples.",
)
@click.version_option(__version__, prog_name="headway")
def cli() -> None:
    """Asynchronous reinforcement learning for language-model agents."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    standard_streams()
    _import_from_here()
    _print_anything()
    try:
        result = cli.main(args=arguments, prog_name="headway", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and not can_print():
            click.echo(f"error: standard output cannot be written: {error.strerror}", err=True)
            return 2
        if isinstance(error, DiskFullError):
            click.echo(visible(f"error: {error}"), err=True)
            return 1
        user_errors = _user_errors(error)
        if not user_errors and is_full(error):
            click.echo(visible(f"error: no room on the disk: {error.strerror}"), err=True)
            for note in getattr(error, "__notes__", ()):
                click.echo(note, err=True)
            return 1
        if not user_errors:
            click.echo(visible("".join(traceback.format_exception(error))), nl=False, err=True)
            if not isinstance(error, HeadwayError) and (place := place_of_users(error)):
                click.echo(visible(f"error: {type(error).__name__}: {error}, raised at {place}"), err=True)
            return 1
        for user_error in user_errors:
            click.echo(visible(f"error: {user_error}"), err=True)
        return 2
    return result if isinstance(result, int) else 0


def _print_anything() -> None:
    """Let text that the terminal's encoding lacks, a task's or an environment's, appear escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _import_from_here() -> None:
    """Put the current directory on the import path, as `python -m headway` does, so that hooks are found."""
    with contextlib.suppress(FileNotFoundError):  # it was removed
        here = os.getcwd()
        if here not in sys.path and not sys.flags.safe_path:
            sys.path.insert(0, here)


def _user_errors(error: BaseException) -> list[UserError]:
    """Return the bad input that an error stands for, empty when it is, or holds, anything else."""
    if isinstance(error, ConfigError):
        return error.problems
    if isinstance(error, UserError):
        return [error]
    if (refusal := refused(error)) is not None:
        return [refusal]
    if not isinstance(error, BaseExceptionGroup):
        return []
    members = [_user_errors(member) for member in error.exceptions]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]
    return [user_error for member in members for user_error in member] if all(members) else []


if __name__ == "__main__":
    sys.exit(main())
