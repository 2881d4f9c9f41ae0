"""Standard output that may be closed, full, or a pipe whose reader may have seen enough."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


def standard_streams() -> None:
    """See that streams 0 to 2 are open, on the null device where whoever started this closed them.

    The next file to be opened would take the place of one that is closed, and workers would print into it.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def can_print() -> bool:
    """Say whether what waits to be printed can be; if not, it is dropped."""
    try:
        handle = sys.stdout.fileno()
    except io.UnsupportedOperation:  # it is no file
        return True
    try:
        sys.stdout.flush()
        os.write(handle, b"\n")  # in a stream without buffer nothing waits any more
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), handle)  # nothing is left to complain at exit
        return False
    return True


@contextmanager
def until_nobody_reads() -> Generator[None]:
    """End the block quietly when the reader of standard output goes away, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to complain at exit
