"""A run directory: resolved config, journal, payloads, checkpoints, logs and a summary.

runs/quickstart/
config.toml       every setting as it was resolved
journal.jsonl     every event, command and note; all metrics derive from it
payloads/         tokens of finished rollouts
checkpoints/      the trainer's checkpoints and the scheduler's snapshots
weights/          the newest published versions, where shared memory has no room for them
logs/             what each worker process wrote
summary.json      the report's metrics, written at the end
life.json         the process that drives the run, while it does
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import RunDirectoryError

CONFIG, JOURNAL, SUMMARY, LIFE = "config.toml", "journal.jsonl", "summary.json", "life.json"


_FOLDERS = ("payloads", "checkpoints", "weights", "logs")


def create(parent: Path, name: str, folders: Sequence[str] = _FOLDERS) -> Path:
    """Make a new run directory with these folders in it, and return it.

    Raises RunDirectoryError when it exists already or cannot be made.
    """
    path = parent / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        for folder in folders:
            (path / folder).mkdir()
    except FileExistsError as error:
        if not parent.is_dir():
            raise RunDirectoryError(
                f"{parent} is not a directory",
                remedy="Choose another one with run.dir=DIRECTORY.",
                key="run.dir",
            ) from error
        raise RunDirectoryError(
            f"the run directory {path} exists already",
            remedy=f"Continue it with `headway resume {path}`, or choose another name with run.name=NAME.",
            key="run.name",
        ) from error
    except OSError as error:
        raise RunDirectoryError(
            f"the run directory {path} cannot be made: {error.strerror}",
            remedy="Choose a writable place with run.dir=DIRECTORY.",
            key="run.dir",
        ) from error
    return path


def free_name(parent: Path, name: str) -> str:
    """Return `name`, or `name-2`, `name-3`, ... where that exists already."""
    if not (parent / name).exists():
        return name
    number = 2
    while (parent / f"{name}-{number}").exists():
        number += 1
    return f"{name}-{number}"


@contextlib.contextmanager
def claimed(path: Path) -> Generator[None]:
    """Let this process alone write into a run; the kernel takes the claim back when it dies.

    Raises RunDirectoryError when another process has it. On a file system that locks no directories (NFS)
    nothing is claimed, and `last_life` alone tells of others.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            last_life(path)  # names the process, once it has begun its life
            raise RunDirectoryError(
                f"another process is starting the run {path}", remedy="Stop it first."
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """What one life of a run has outside its directory; read by the next one if this one is killed."""

    pid: int  # the driver's
    run_id: str  # labels its sandboxes
    weights_dir: str  # where it hands versions over


def last_life(path: Path) -> LifeRecord | None:
    """Return the record that the last life left because it was killed, None when it ended by itself.

    Raises RunDirectoryError when that life is still going.
    """
    record = life_record(path)
    if record is None:
        return None
    if record.pid != os.getpid() and _is_headway(record.pid):
        raise RunDirectoryError(
            f"process {record.pid} is still running the run {path}", remedy="Stop it first."
        )
    return record


def driver_pid(path: Path) -> int | None:
    """Return the process that drives a run now, None when none does."""
    record = life_record(path)
    return record.pid if record is not None and _is_headway(record.pid) else None


def life_record(path: Path) -> LifeRecord | None:
    """Return the record of the life that goes on or was killed, None when there is none."""
    try:
        return LifeRecord(**json.loads((path / LIFE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def begin_life(path: Path, record: LifeRecord) -> None:
    """Note that this process drives the run, whole or not at all."""
    temporary = path / f"{LIFE}.new"
    temporary.write_text(json.dumps(asdict(record)) + "\n")
    temporary.replace(path / LIFE)


def end_life(path: Path) -> None:
    """Take back `begin_life`: nothing is left outside the run directory."""
    (path / LIFE).unlink(missing_ok=True)


def _is_headway(pid: int) -> bool:
    try:
        return b"headway" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write the summary, whole or not at all."""
    temporary = path / f"{SUMMARY}.new"
    temporary.write_text(json.dumps(summary, indent=2) + "\n")
    temporary.replace(path / SUMMARY)


def code_version() -> str:
    """Return the git commit of the code that runs, with + when it was changed since; "" when unknown."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "."],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}+" if changed else commit
