"""The checkpoint that a config names, found and verified."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headway.core.errors import ModelError
from headway.core.storage import refused
from headway.models.checkpoint import resolve, verify

if TYPE_CHECKING:
    from pathlib import Path

    from headway.config.compose import Config, SftConfig


def model_directory(config: Config | SftConfig) -> Path:
    """Return the checkpoint of `model.path`, verified.

    Raises ModelError when it is missing, incomplete or of an unknown family, UserError when it may not be
    read.
    """
    try:
        path = resolve(config.model.path, progress=say_aside)
        verify(path)
    except ModelError as error:
        error.key = error.key or "model.path"
        raise
    except OSError as error:
        if (refusal := refused(error)) is None:
            raise
        refusal.key = "model.path"
        raise refusal from error
    return path


def say_aside(line: str) -> None:
    """Print a line that is no part of a command's own output."""
    print(line, file=sys.stderr, flush=True)
