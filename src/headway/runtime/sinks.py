"""Sinks of a run's numbers beside its journal, told what the run's view is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.records import Entry
from headway.telemetry.tensorboard import FOLDER, TensorBoardSink, open_sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headway.runtime.view import View
    from headway.telemetry.header import JournalHeader
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.records import Stat
    from headway.telemetry.settings import TelemetrySettings


class TellingView:
    """A view that hands each entry to a sink too, and shows what the sink has to say."""

    def __init__(self, view: View, sink: TensorBoardSink) -> None:
        self._view = view
        self._sink = sink
        self.say = view.say
        self.width = view.width

    def feed(self, record: Entry | Stat) -> None:
        """Take a record in, after the metrics did."""
        self._view.feed(record)
        if isinstance(record, Entry):
            for line in self._sink.after(record):
                self._view.say(line)

    async def keep_fresh(self, now: Callable[[], float]) -> None:
        """Draw until cancelled."""
        await self._view.keep_fresh(now)

    def close(self) -> None:
        """Leave only the lines, and close the sink; idempotent."""
        self._view.close()
        self._sink.close()


def with_sinks(
    view: View, settings: TelemetrySettings, run_dir: Path, metrics: RunMetrics, header: JournalHeader
) -> View:
    """Return the view, with the sinks that the settings ask for.

    Raises HeadwayError where one cannot be written.
    """
    if not settings.tensorboard:
        return view
    return TellingView(view, open_sink(run_dir / FOLDER, header, metrics))
