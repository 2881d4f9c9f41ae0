"""Scalars for TensorBoard, while a run goes on or afterwards, from the same records as every other number.

Consumes the metrics of a run after each record that they took in; waits for nothing. One event holds all
scalars of a step; its time is the run's own (stops left out) added to when the run began. What a resume or a
rollback takes back is purged: a session that starts at the step after the one that survives, which is how
TensorBoard is told. Loads the `tensorboard` package, neither TensorFlow nor torch, when a sink is made.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core import events, notes
from headway.core.clock import wall_time
from headway.core.errors import HeadwayError, UserError
from headway.telemetry.metrics import RunMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.telemetry.header import JournalHeader
    from headway.telemetry.journal import Journal
    from headway.telemetry.records import Entry
    from headway.telemetry.steps import EvalPoint, StepRecord

FOLDER = "tensorboard"  # in the run directory
_TAGS = {
    "reward": "train/reward",
    "solve_rate": "train/pass_at_1",
    "no_signal_fraction": "train/groups_without_signal",
    "num_rollouts": "train/rollouts",
    "mean_tokens": "rollout/tokens",
    "truncated_fraction": "rollout/truncated_fraction",
    "production_per_s": "rates/production_per_s",
    "consumption_per_s": "rates/consumption_per_s",
    "wait_fraction": "rates/wait_fraction",
    "duration_s": "time/step_s",
    "compute_s": "time/compute_s",
    "publish_s": "time/publish_s",
    "depth_signal": "queue/depth_with_signal",
    "staleness_mean": "staleness/token_mean",
    "staleness_max": "staleness/token_max",
    "num_trained_rollouts": "batch/rollouts",
    "num_tokens": "batch/tokens",
    "num_trained_tokens": "batch/trained_tokens",
}
_EVAL_TAGS = {
    "reward": "eval/reward",
    "pass_at_1": "eval/pass_at_1",
    "pass_at_n": "eval/pass_at_n",
    "num_rollouts": "eval/rollouts",
    "num_failed": "eval/failed",
}


def require_tensorboard(key: str = "") -> None:
    """Raise UserError unless the `tensorboard` package can be imported; `key` is the setting that asks."""
    try:
        import_module("tensorboard.compat.proto.event_pb2")
        import_module("tensorboard.summary.writer.record_writer")
    except ImportError as error:
        raise UserError(
            "scalars for TensorBoard need the package tensorboard, which is not installed",
            remedy="Install it: pip install 'headway[tensorboard]'",
            key=key,
        ) from error


class EventFile:
    """One TensorBoard event file, written without a thread: a fault is raised where it happens."""

    def __init__(self, folder: Path) -> None:
        """Begin a file of its own in a folder, which is made.

        Raises OSError where it cannot be written.
        """
        self._proto: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2")
        writer: Any = import_module("tensorboard.summary.writer.record_writer")
        folder.mkdir(parents=True, exist_ok=True)
        began = wall_time()
        stem = f"events.out.tfevents.{int(began):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while (path := folder / f"{stem}.{number}").exists():
            number += 1
        self._writer = writer.RecordWriter(path.open("xb"))
        self._write(self._proto.Event(wall_time=began, file_version="brain.Event:2"))

    def scalars(self, at: float, step: int, values: Mapping[str, float]) -> None:
        """Write values of one step; `at` is in seconds since the epoch."""
        summary = self._summary.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._write(self._proto.Event(wall_time=at, step=step, summary=summary))

    def purge(self, at: float, step: int) -> None:
        """Say that whatever was written for this step and later ones is void."""
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(self._proto.Event(wall_time=at, step=step, session_log=start))

    def close(self) -> None:
        """Close the file; idempotent."""
        if not self._writer.closed:
            self._writer.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


class TensorBoardSink:
    """Writes what the metrics tell into an event file.

    A file that cannot be written any more ends the sink, not the run.
    """

    def __init__(self, folder: Path, header: JournalHeader, metrics: RunMetrics) -> None:
        """Begin, or go on in a folder that holds events of an earlier life.

        Raises OSError where it cannot be written.
        """
        self._over = False
        self._metrics = metrics
        self._began = datetime.fromisoformat(header.created).timestamp()
        is_new = not any(folder.glob("events.out.tfevents.*"))
        self._file = EventFile(folder)
        if is_new:  # of a run that was resumed with the sink switched on: what there is so far
            for record in metrics.steps.records:
                self._step(record)
            for point in metrics.steps.evals:
                self._eval(point)
        self._told_evals = len(metrics.steps.evals)

    def after(self, entry: Entry) -> list[str]:
        """Write what is new in an entry that the metrics were just fed with; return a fault's line, once."""
        if self._over:
            return []
        try:
            self._after(entry)
        except OSError as error:
            self._over = True
            return [f"warning: scalars for TensorBoard are not written any more: {error.strerror or error}"]
        return []

    def close(self) -> None:
        """Close the file; idempotent. Everything was flushed before: a fault here loses nothing."""
        with suppress(OSError):
            self._file.close()

    def _after(self, entry: Entry) -> None:
        steps = self._metrics.steps
        survived = [note.step for note in entry.notes if isinstance(note, notes.RolledBackTo)]
        if isinstance(entry.event, events.RunResumed):
            survived.append(entry.event.step)
        for step in survived:
            self._file.purge(self._began + entry.t, step + 1)
            self._told_evals = min(self._told_evals, len(steps.evals))
        if isinstance(entry.event, events.StepEnded) and steps.records:
            self._step(steps.records[-1])
        for point in steps.evals[self._told_evals :]:
            self._eval(point)
        self._told_evals = len(steps.evals)

    def _step(self, record: StepRecord) -> None:
        values = {tag: value for name, tag in _TAGS.items() if (value := getattr(record, name)) is not None}
        values |= {f"loss/{name}": value for name, value in record.metrics.items()}
        values |= self._metrics.sandbox_steps.get(record.step, {})
        self._file.scalars(self._began + record.t, record.step, values)

    def _eval(self, point: EvalPoint) -> None:
        values = {
            tag: value for name, tag in _EVAL_TAGS.items() if (value := getattr(point, name)) is not None
        }
        self._file.scalars(self._began + point.t, point.step, values)


def convert(journal: Journal, folder: Path) -> int:
    """Write the surviving series of a whole journal into a folder; return its number of steps.

    Raises UserError where the package is missing, the folder holds events already or cannot be written.
    """
    require_tensorboard()
    metrics = RunMetrics.of(journal)
    try:
        if any(folder.glob("events.out.tfevents.*")):
            raise UserError(
                "--tensorboard must name a directory without events, for they would be shown together",
                value=str(folder),
                remedy="Name another one, or remove its events.out.tfevents.* files",
            )
        TensorBoardSink(folder, journal.header, metrics).close()
    except OSError as error:
        raise UserError(
            f"the events cannot be written: {error.strerror}",
            value=str(folder),
            remedy="Name a directory that can be made and written to",
        ) from error
    return len(metrics.steps.records)


def open_sink(folder: Path, header: JournalHeader, metrics: RunMetrics) -> TensorBoardSink:
    """Begin the sink of a run's life.

    Raises HeadwayError where its file cannot be written.
    """
    try:
        return TensorBoardSink(folder, header, metrics)
    except OSError as error:
        raise HeadwayError(
            f"{folder} cannot be written: {error.strerror}",
            remedy="Free disk space, or leave telemetry.tensorboard = true out",
        ) from error
