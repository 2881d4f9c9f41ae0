"""Writes a page whole or not at all: killed in between, the old file stays, or none is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.telemetry.whole_file import whole_file

if TYPE_CHECKING:
    from pathlib import Path


def check_target(path: Path) -> None:
    """See that a file can be written there, before the work is done.

    Raises UserError where it cannot.
    """
    if path.is_dir():
        raise UserError(
            "--html must name a file, and this is a directory",
            value=str(path),
            remedy=f"Use {path / 'report.html'}",
        )
    if not path.parent.is_dir():
        raise UserError(
            "--html must name a file in a directory that exists",
            value=str(path),
            remedy=f"Make it first: mkdir -p {path.parent}",
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(
            "--html must name a file in a directory that may be written to",
            value=str(path),
            remedy="Choose another directory, or change its permissions",
        )


def write_page(path: Path, page: str) -> int:
    """Put the page in place of whatever is there; return its size in bytes.

    Raises UserError when the file cannot be written, and leaves what was there.
    """
    data = page.encode("utf-8", "backslashreplace")
    try:
        with whole_file(path) as partial, partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"the report cannot be written: {error.strerror}",
            value=str(path),
            remedy="Free disk space, or choose another place",
        ) from error
    return len(data)
