"""Whose fault an exception is, and how it reads in one line."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import (
    DiskFullError,
    EngineError,
    EnvironmentSetupError,
    HeadwayError,
    SandboxError,
    ToolError,
    WorkerDiedError,
)
from headway.core.hooks import frame_to_blame, place_in_hook
from headway.environments.record import ReplayDivergedError

if TYPE_CHECKING:
    from collections.abc import Generator

    from headway.core.events import Owner


class PayloadError(HeadwayError):
    """A finished rollout could not be written."""


def owner_and_cause(error: Exception) -> tuple[Owner, str]:
    """Return who answers for a failed rollout and the failure's short name."""
    if isinstance(error, EngineError):
        return "infrastructure", "engine_lost"
    if isinstance(error, SandboxError):
        return "infrastructure", "sandbox"
    if isinstance(error, ToolError):
        return "infrastructure", "tool"
    if isinstance(error, WorkerDiedError):
        return "infrastructure", "worker_died"
    if isinstance(error, DiskFullError):
        return "infrastructure", "disk_full"
    if isinstance(error, PayloadError):
        return "infrastructure", "payload"
    if isinstance(error, ReplayDivergedError):
        return "environment", "replay_diverged"
    return "environment", "exception"


def raised(error: BaseException, when: str) -> EnvironmentSetupError:
    """Return what the environment's own code raised before a run began, and in which line of it."""
    place = place_in_hook(error)
    return EnvironmentSetupError(
        f"the environment must not fail while {when}: {type(error).__name__}: {error}"
        + (f", raised at {place}" if place else ""),
        remedy="Mend the environment; headway env try runs one rollout of it",
        key="environment.name",
    )


@contextmanager
def blamed(when: str) -> Generator[None]:
    """Make whatever the environment's own code raises inside bad input, such as `being built`."""
    try:
        yield
    except HeadwayError:
        raise
    except Exception as error:  # it may raise anything
        raise raised(error, when) from error


def describe_exception(error: BaseException) -> str:
    """Return the error's type, its words and, unless it is one of our own, the line that raised it.

    Where the user's code called a library that raised, the line is in the user's code.
    """
    if isinstance(error, HeadwayError):
        return str(error)
    frame = frame_to_blame(error) or next(reversed(traceback.extract_tb(error.__traceback__)), None)
    at = "" if frame is None else f" at {Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {error}{at}"
