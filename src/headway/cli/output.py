"""Printing text that may be long: to a terminal, to a file, or into a pipe whose reader has seen enough."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console


def console() -> Console:
    """Return what prints to standard output and wraps nothing: what is copied off it is what was written.

    Its `color_system` is None where there are no colours: in a pipe, with NO_COLOR, on a dumb terminal.
    """
    from rich.console import Console

    class Printer(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with code 1

    return Printer(
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


@contextmanager
def until_nobody_reads() -> Generator[None]:
    """End the block quietly when the reader of standard output goes away, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to complain at exit
