"""Whose fault an exception is, and how it reads in one line."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import DiskFullError, EngineError, HeadwayError, SandboxError
from headway.core.hooks import is_users
from headway.environments.record import ReplayDivergedError

if TYPE_CHECKING:
    from headway.core.events import Owner


class PayloadError(HeadwayError):
    """A finished rollout could not be written."""


def owner_and_cause(error: Exception) -> tuple[Owner, str]:
    """Return who answers for a failed rollout and the failure's short name."""
    if isinstance(error, EngineError):
        return "infrastructure", "engine_lost"
    if isinstance(error, SandboxError):
        return "infrastructure", "sandbox"
    if isinstance(error, DiskFullError):
        return "infrastructure", "disk_full"
    if isinstance(error, PayloadError):
        return "infrastructure", "payload"
    if isinstance(error, ReplayDivergedError):
        return "environment", "replay_diverged"
    return "environment", "exception"


def describe_exception(error: BaseException) -> str:
    """Return the error's type, its words and, unless it is one of our own, the line that raised it.

    Where the user's code called a library that raised, the line is in the user's code.
    """
    if isinstance(error, HeadwayError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if is_users(frame.filename)] or frames
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{at}"
