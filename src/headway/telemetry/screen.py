"""A terminal with a frame at its bottom and lines that scroll above it.

Nothing of the terminal is changed that would have to be changed back: the cursor stays visible, no other
screen is opened, no key is caught. So whatever ends the process, the terminal is as it was.
"""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from headway.telemetry.live_frame import Line
from headway.telemetry.visible import visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult


Draw = Callable[[int, int | None, bool], list[Line]]
"""Width, height or None, and whether only ASCII can be shown, to the lines of a frame."""

_SHARE, _LEAST_LINES = 0.6, 5  # of the terminal's lines that the frame may take
_NUM_KEPT = 100  # newest lines, shown again when the size of the terminal changes


def is_terminal(stream: TextIO) -> bool:
    """Say whether a stream goes to a terminal of any kind."""
    return not stream.closed and stream.isatty()


def can_be_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether a frame can be redrawn on a stream: a terminal that moves its cursor, and no notebook.

    What a notebook starts gets a terminal too, but one whose output is shown as plain text.
    """
    in_notebook = "JPY_PARENT_PID" in environ
    return is_terminal(stream) and environ.get("TERM", "dumb") not in ("dumb", "unknown") and not in_notebook


class Screen:
    """The lower part of a terminal.

    Before the first frame, and after `close`, lines are printed as they are.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = _Console(file=stream, force_terminal=True, highlight=False, emoji=False)
        self._stream = stream
        self._live: Live | None = None
        self._waiting: list[str] = []  # lines, while the terminal takes nothing
        self._kept: deque[str] = deque(maxlen=_NUM_KEPT)
        self._size = (0, 0)
        self._tallest = 0
        self._gone = False  # the terminal was closed

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._console.width

    def say(self, line: str) -> None:
        """Print a line above the frame; with the next frame where the terminal takes nothing now."""
        self._kept.append(line)
        self._waiting.append(line)
        if self._live is None or self._takes():
            self._print_waiting()

    def show(self, draw: Draw) -> None:
        """Draw a frame in place of the last one; a terminal that takes nothing now gets none."""
        if self._gone or not self._takes():
            return
        console = self._console
        size = (console.width, console.height)
        most = min(size[1] - 1, max(_LEAST_LINES, int(size[1] * _SHARE)))
        lines = draw(size[0], most, _ascii_only(console))
        if self._live is not None and size != self._size:
            self._begin_anew()
        self._size = size
        self._tallest = max(self._tallest, len(lines))
        lines = [*lines, *([[]] * (self._tallest - len(lines)))]  # a frame that shrinks would make lines jump
        try:
            if self._live is None:
                self._live = Live(
                    console=console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=self._stream is sys.stdout,
                    redirect_stderr=is_terminal(sys.stderr),
                    vertical_overflow="crop",
                )
                self._live.start()
            self._live.update(Drawn(lines), refresh=True)
        except OSError:
            self._gone = True
            return
        self._print_waiting()

    def close(self, draw: Draw | None = None) -> None:
        """Take the frame away, or leave one as it is now in its place; idempotent."""
        live, self._live = self._live, None
        if self._gone:
            return
        try:
            if live is not None:
                live.stop()
            self._print_waiting()
            if draw is not None:
                _print_whole(self._console, draw)
        except OSError:
            self._gone = True

    def _begin_anew(self) -> None:
        """The size changed, and with it what stands where: draw everything again."""
        if self._live is not None:
            self._live.stop()
        self._live, self._tallest = None, 0
        self._console.clear()
        lines = list(self._kept)[-self._console.height :]
        self._waiting = []
        for line in lines:
            self._print(line)

    def _print_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            for line in waiting:
                self._print(line)
        except OSError:
            self._gone = True

    def _print(self, line: str) -> None:
        if not self._gone:
            style = "yellow" if line.startswith("warning: ") else "red" if line.startswith("error: ") else ""
            self._console.print(Text(visible(line), style), soft_wrap=True)

    def _takes(self) -> bool:
        """Say whether the terminal takes output: one that is held (Ctrl-S) must not hold the run."""
        try:
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        except (OSError, ValueError):  # it is no file of the system
            return True


def print_frame(stream: TextIO, draw: Draw) -> None:
    """Print a whole frame once, without colours where the stream is no terminal."""
    _print_whole(Console(file=stream, highlight=False, emoji=False), draw)


def _print_whole(console: Console, draw: Draw) -> None:
    console.print(Drawn(draw(console.width, None, _ascii_only(console))), end="")


def _ascii_only(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


class Drawn:
    """Lines of a frame as something that rich prints."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments."""
        for position, line in enumerate(self._lines):
            if position:
                yield Segment.line()
            for span in line:
                yield Segment(span.text, console.get_style(span.style) if span.style else None)
        yield Segment.line()


class _Console(Console):
    """A console that leaves the cursor as it is: a process that is killed could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False
