"""The record of a supervised run: `sft.jsonl`, one JSON object a line, appended as things happen.

A run of `headway sft` has no scheduler and so no journal; this is all that its report is made from. `kind`
says what a line is, `t` the seconds since the run began, time between its lives left out:

    began      what is trained: format, code, model, num_rows, num_trained_tokens, ..., steps planned
    resumed    step gone on from, lineage, changes (key, value)
    step       step, epochs, loss (nats a token), num_tokens, num_trained_tokens, num_rows, learning_rate,
               grad_norm, duration_s
    eval       step, loss (nats a token), num_tokens
    ended      step, outcome (complete, interrupted, failed), message

Steps after the one that a `resumed` names are lost: their lines count no more.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from headway.core.errors import DiskFullError, JournalError, RunDirectoryError
from headway.core.storage import append_whole, disk_full, is_full

RECORD = "sft.jsonl"
FORMAT = 1


def is_supervised(run: Path) -> bool:
    """Say whether a directory is that of a supervised run."""
    return (run / RECORD).is_file()


class RecordWriter:
    """Appends lines to a run's record."""

    def __init__(self, run: Path) -> None:
        self._path = run / RECORD
        self._file = self._path.open("ab", buffering=0)

    def write(self, kind: str, t: float, **facts: Any) -> None:
        """Append one line, whole or not at all; a number that is not finite becomes null.

        Raises DiskFullError when there is no room for it.
        """
        line = json.dumps({"kind": kind, "t": round(t, 6), **facts}, ensure_ascii=False)
        data = f"{line}\n".encode()
        try:
            append_whole(self._file, data)
        except OSError as error:
            raise _no_room(self._path, len(data), error) from error

    def sync(self) -> None:
        """Make everything so far survive a power cut.

        Raises DiskFullError when there is no room for it.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _no_room(self._path, 0, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _no_room(path: Path, num_bytes: int, error: OSError) -> OSError | DiskFullError:
    return disk_full(path, num_bytes, error) if is_full(error) else error


@dataclass(slots=True)
class SupervisedRun:
    """What a record says, lost steps left out."""

    began: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    evals: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    resumed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ended: dict[str, Any] | None = None  # None while it runs, and when it was killed
    last_s: float = 0.0  # of the newest line

    @property
    def changes(self) -> list[tuple[str, Any]]:
        """Settings that resumes changed, in order."""
        return [(key, value) for line in self.resumed for key, value in line["changes"]]


def read_supervised(run: Path) -> SupervisedRun:
    """Read a run's record.

    Raises JournalError when it is damaged before its end or of another format; a torn last line is left out.
    """
    path = run / RECORD
    lines = path.read_bytes().split(b"\n")
    found: SupervisedRun | None = None
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = cast("dict[str, Any]", json.loads(line))
            kind = entry["kind"]
        except (ValueError, KeyError, TypeError) as error:
            rule, remedy = "a line of the record must be whole", "Restore it from a copy, or begin a new run"
            raise JournalError(rule, remedy=remedy, where=f"{path}:{number}") from error
        if kind == "began":
            _check_format(entry, path)
            found = SupervisedRun(entry)
        if found is None:
            rule, remedy = "the record must begin with what is trained", "Begin a new run"
            raise JournalError(rule, value=kind, remedy=remedy, where=f"{path}:{number}")
        _add(found, entry)
    if found is None:
        rule = f"{path} is empty: the run died before its first step"
        raise RunDirectoryError(rule, remedy="Remove the directory and begin a new run")
    return found


def _check_format(entry: dict[str, Any], path: Path) -> None:
    if entry.get("format") != FORMAT:
        rule, remedy = f"the record {path} must have format {FORMAT}", "Use the version that wrote it"
        raise JournalError(rule, value=entry.get("format"), remedy=remedy)


def _add(run: SupervisedRun, entry: dict[str, Any]) -> None:
    run.last_s = float(entry["t"])
    match entry["kind"]:
        case "step":
            run.steps.append(entry)
        case "eval":
            run.evals = [one for one in run.evals if one["step"] != entry["step"]]
            run.evals.append(entry)
        case "resumed":
            run.steps = [one for one in run.steps if one["step"] <= entry["step"]]
            run.evals = [one for one in run.evals if one["step"] <= entry["step"]]
            run.resumed.append(entry)
            run.ended = None
        case "ended":
            run.ended = entry
        case _:
            pass


def truncate_torn_line(run: Path) -> None:
    """Cut a torn last line off, so that a resumed run can append."""
    path = run / RECORD
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
