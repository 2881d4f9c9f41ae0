"""What a person sees of a run while it goes on: plain lines, or lines above a live frame.

The driver tells a view each record and each line, and lets it draw at times, between two events and in its
own thread; nothing else of the run knows of it. A frame is drawn at most every _EVERY_S seconds, and never
takes more than _MOST_SHARE of the driver's time. A fault of the live view ends the view, not the run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Protocol

from headway.core.clock import stopwatch
from headway.telemetry.progress import WIDTH
from headway.telemetry.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.telemetry.header import JournalHeader
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.records import Entry, Stat
    from headway.telemetry.settings import Choice

_EVERY_S = 0.25
_MOST_SHARE = 0.02


def say(line: str) -> None:
    """Print one line at once.

    Where nobody reads any more (`| head`), or there is no room for it (`> log`), a run goes on without lines.
    """
    try:
        print(visible(line), flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class View(Protocol):
    """Shows a run that this process drives."""

    def say(self, line: str) -> None:
        """Show a line that stays."""
        ...

    def width(self) -> int:
        """Return how wide a line may be."""
        ...

    def feed(self, record: Entry | Stat) -> None:
        """Take a record in, after the metrics did."""
        ...

    async def keep_fresh(self, now: Callable[[], float]) -> None:
        """Draw until cancelled; `now` is the run's clock."""
        ...

    def close(self) -> None:
        """Leave only the lines; idempotent."""
        ...


class LinesView:
    """Plain lines, for a pipe, a file, a notebook, or whoever likes them better."""

    def say(self, line: str) -> None:
        """Print a line."""
        say(line)

    def width(self) -> int:
        """Return the width of a full line."""
        return WIDTH

    def feed(self, record: Entry | Stat) -> None:
        """Nothing is derived from it."""

    async def keep_fresh(self, now: Callable[[], float]) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Nothing is open."""


class LiveView:
    """Lines above a frame that says what goes on."""

    def __init__(self, name: str, metrics: RunMetrics, header: JournalHeader) -> None:
        from headway.telemetry.live_frame import frame
        from headway.telemetry.live_state import LiveState
        from headway.telemetry.screen import Screen

        self._name = name
        self._state = LiveState(metrics, header)
        self._screen = Screen(sys.stdout)
        self._frame = frame
        self._failed = False

    def say(self, line: str) -> None:
        """Print a line above the frame."""
        self._screen.say(line)

    def width(self) -> int:
        """Return the width of the terminal, at most that of a full line."""
        return min(WIDTH, self._screen.width)

    def feed(self, record: Entry | Stat) -> None:
        """Take a record in."""
        if self._failed:
            return
        try:
            self._state.feed(record)
        except Exception as error:
            self._fail(error)

    async def keep_fresh(self, now: Callable[[], float]) -> None:
        """Draw until cancelled."""
        while not self._failed:
            began = stopwatch()
            try:
                self._screen.show(
                    lambda width, height, ascii_only: self._frame(
                        self._state,
                        name=self._name,
                        now=now(),
                        width=width,
                        height=height,
                        ascii_only=ascii_only,
                    )
                )
            except Exception as error:
                self._fail(error)
            await asyncio.sleep(max(_EVERY_S, (stopwatch() - began) / _MOST_SHARE))

    def close(self) -> None:
        """Take the frame away."""
        self._screen.close()

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._screen.close()
        self.say(f"warning: the live view failed, lines go on ({type(error).__name__}: {error})")


def open_view(choice: Choice, name: str, metrics: RunMetrics, header: JournalHeader) -> View:
    """Return the view that `telemetry.view`, or the command line, asks for, where the output allows it."""
    from headway.telemetry.screen import can_be_live, is_terminal

    live = can_be_live(sys.stdout) if choice == "auto" else choice == "live" and is_terminal(sys.stdout)
    return LiveView(name, metrics, header) if live else LinesView()
