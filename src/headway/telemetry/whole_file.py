"""Files that appear whole or not at all.

Invariant: under its own name a file is the old one or the new one, whenever a process is killed; what a kill
leaves is NAME.partial beside it, and the next writer of NAME removes that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from headway.core.errors import UserError


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yield where to write; it becomes `path` at the end, or vanishes when the block raises.

    Raises UserError when nothing can be written there.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        partial.write_bytes(b"")  # whether that is possible is known before the work begins
    except OSError as error:
        raise UserError(
            f"the file {path} cannot be written: {error.strerror}",
            remedy="Name a file in a directory that exists and that you may write to",
        ) from error
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
