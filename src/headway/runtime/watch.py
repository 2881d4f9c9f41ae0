"""`headway watch`: a run as its journal tells it, while another process writes it or after it ended.

Consumes the journal as it grows; waits for more, a moment at a time, as long as a process drives the run. It
writes nothing into the run and asks nothing of its driver.
"""

from __future__ import annotations

import shlex
import sys
from collections import deque
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch, wall_time
from headway.core.errors import RunDirectoryError
from headway.runtime import directory
from headway.runtime.view import say
from headway.telemetry.follow import Follower
from headway.telemetry.journal import journal_path
from headway.telemetry.live_frame import Line, frame
from headway.telemetry.live_state import LiveState
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.progress import WIDTH, Progress
from headway.telemetry.records import Entry
from headway.telemetry.screen import Screen, can_be_live, print_frame
from headway.telemetry.text import percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.telemetry.header import JournalHeader

_HEADER_WAIT_S = 30.0  # from the making of a run's directory to its journal's first line
_CLAIM_WAIT_S = 1.0  # from the making of a run's directory to its being claimed
_NUM_EARLIER = 20  # newest lines of the time before that are shown above a frame


def watch(run_dir: Path, *, once: bool, lines: bool, every_s: float) -> int:
    """Show a run until it ends, or as it is now; return the exit code.

    Raises RunDirectoryError when there is no run, JournalError when its journal is damaged.
    """
    follower = Follower(run_dir)
    header = _header(follower, run_dir, every_s)
    try:
        if once:
            return _once(_Watched(run_dir, follower, header))
        if lines or not can_be_live(sys.stdout):
            return _lines(_Watched(run_dir, follower, header), every_s)
        screen = Screen(sys.stdout)
        return _live(_Watched(run_dir, follower, header, lambda: min(WIDTH, screen.width)), screen, every_s)
    except KeyboardInterrupt:
        return 0  # the way to leave; the run goes on


class _Watched:
    """A run, read as far as its journal goes."""

    def __init__(
        self,
        run_dir: Path,
        follower: Follower,
        header: JournalHeader,
        width: Callable[[], int] = lambda: WIDTH,
    ) -> None:
        self._run_dir = run_dir
        self._name = run_dir.resolve().name
        self._follower = follower
        self.metrics = RunMetrics(header)
        self._state = LiveState(self.metrics, header)
        self._progress = Progress(self.metrics, width)
        self.driven = True  # by a process, as it was before the last look

    def look(self) -> list[str]:
        """Read on, a part of what is there where that is much; return the lines of it."""
        self.driven = directory.driver_pid(self._run_dir) is not None  # first: its last records are read
        lines: list[str] = []
        for record in self._follower.poll():
            self.metrics.feed(record)
            self._state.feed(record)
            if isinstance(record, Entry):
                lines += self._progress.after(record)
        return lines

    @property
    def caught_up(self) -> bool:
        """Whether the last look read to the journal's end."""
        return self._follower.caught_up

    @property
    def over(self) -> bool:
        """Whether everything is read and nobody writes any more."""
        return self.caught_up and not self.driven

    def all_lines(self) -> list[str]:
        """Read everything that is there."""
        lines = self.look()
        while not self.caught_up:
            lines += self.look()
        return lines

    def ending(self) -> str:
        """Return what became of a run that no process drives."""
        on = f"`headway resume {shlex.quote(str(self._run_dir))}` goes on"
        match self.metrics.outcome:
            case "unfinished" if directory.life_record(self._run_dir) is not None:
                return f"not running: killed; {on}"
            case "unfinished":
                return f"not running: ended at once; {on}"
            case "interrupted" | "failed" | "guard" as outcome:
                return f"not running: {outcome}; {on}"
            case outcome:
                return f"not running: finished ({outcome})"

    def frame(self, width: int, height: int | None, ascii_only: bool) -> list[Line]:
        """Draw it as it is now."""
        notice, now = "", self.metrics.now
        if not self.caught_up:
            notice = f"reading the journal, {percent(self._follower.read_fraction)}"
        elif not self.driven:
            notice = self.ending().partition(";")[0]
        else:
            now += self._silence_s()
        return frame(
            self._state,
            name=self._name,
            now=now,
            width=width,
            height=height,
            notice=notice,
            ascii_only=ascii_only,
        )

    def _silence_s(self) -> float:
        """Seconds since the newest record; no clock but that of the machine is common to two processes."""
        return max(0.0, wall_time() - self._follower.path.stat().st_mtime)


def _header(follower: Follower, run_dir: Path, every_s: float) -> JournalHeader:
    """Return the journal's first line, waited for where the run's directory is new."""
    began = stopwatch()
    while True:
        if follower.path.is_file():
            follower.poll()
        if follower.header is not None:
            return follower.header
        if follower.path.exists():
            journal_path(follower.path)  # refuses what is no file
        waited = stopwatch() - began
        if waited > _HEADER_WAIT_S or (waited > _CLAIM_WAIT_S and not directory.is_claimed(run_dir)):
            raise RunDirectoryError(
                f"the journal of {run_dir} has no complete first line",
                remedy="The run ended before it began; start a new one with `headway train`.",
            )
        Event().wait(every_s)


def _once(watched: _Watched) -> int:
    watched.all_lines()
    print_frame(sys.stdout, watched.frame)
    if not watched.driven:
        say(watched.ending())
    return 0


def _lines(watched: _Watched, every_s: float) -> int:
    while True:
        for line in watched.look():
            say(line)
        if watched.over:
            say(watched.ending())
            return 0
        if watched.caught_up:
            Event().wait(every_s)


def _live(watched: _Watched, screen: Screen, every_s: float) -> int:
    earlier: deque[str] | None = deque(maxlen=_NUM_EARLIER)
    try:
        while True:
            lines = watched.look()
            if earlier is not None:
                earlier.extend(lines)
                if watched.caught_up:
                    lines, earlier = list(earlier), None
            if earlier is None:
                for line in lines:
                    screen.say(line)
            if watched.over:
                break
            screen.show(watched.frame)
            if watched.caught_up:
                Event().wait(every_s)
    finally:
        screen.close(watched.frame)
    say(watched.ending())
    return 0
