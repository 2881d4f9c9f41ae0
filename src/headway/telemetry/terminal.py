"""What prints styled text to standard output."""

from __future__ import annotations

import os

from rich.console import Console


class _Printer(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process with code 1


def console() -> Console:
    """Return what prints to standard output and wraps nothing: what is copied off it is what was written.

    Its `color_system` is None where there are no colours: in a pipe, with NO_COLOR, on a dumb terminal.
    """
    return _Printer(
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
