"""Printing text that may be long into a pipe whose reader may have seen enough."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def until_nobody_reads() -> Generator[None]:
    """End the block quietly when the reader of standard output goes away, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to complain at exit
