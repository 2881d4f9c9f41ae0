"""A run directory: resolved config, journal, payloads, checkpoints, logs and a summary.

runs/quickstart/
config.toml       every setting as it was resolved
journal.jsonl     every event, command and note; all metrics derive from it
payloads/         tokens of finished rollouts
checkpoints/      the trainer's checkpoints and the scheduler's snapshots
weights/          the newest published versions, where shared memory has no room for them; while it runs
logs/             what each worker process wrote
summary.json      the report's metrics, written at the end
life.json         the process that drives the run, while it does
.reserve          room for the journal's end should the disk be full, while it runs
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
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
            remedy=f"Continue it with `headway resume {shlex.quote(str(path))}`, or choose another name with "
            "run.name=NAME.",
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
def claimed(path: Path) -> Generator[bool]:
    """Let this process alone write into a run; the kernel takes the claim back when it dies.

    Yields whether the claim was made: on a file system that locks no directories (NFS) nothing is claimed,
    and `last_life` and `begin_life` alone tell of others.

    Raises RunDirectoryError when another process has it.
    """
    claim = True
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
            claim = False
        yield claim
    finally:
        os.close(handle)


def is_claimed(path: Path) -> bool:
    """Say whether some process has the claim of a run, or may have it.

    It is asked with a claim of a moment, so do not ask where a run may be about to begin.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """What one life of a run has outside its directory; read by the next one if this one is killed."""

    pid: int  # the driver's
    run_id: str  # labels its sandboxes
    weights_dir: str  # where it hands versions over
    host: str = ""  # name of its machine


def this_host() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


def last_life(path: Path, *, alone: bool = False) -> LifeRecord | None:
    """Return the record that the last life left because it was killed, None when it ended by itself.

    Args:
        path: of the run.
        alone: whether this process has the claim, which a life that goes on would have.

    Raises RunDirectoryError when that life is still going, or may be, and when its record cannot be read.
    """
    record = life_record(path)
    if record is None:
        return None
    if alone or record.pid == os.getpid():
        return record
    if record.host not in ("", this_host()):
        raise RunDirectoryError(
            f"process {record.pid} of the machine {record.host} may still be running the run {path}",
            remedy=f"Make sure that it is over, then delete {path / LIFE}.",
        )
    if _is_headway(record.pid):
        raise RunDirectoryError(
            f"process {record.pid} is still running the run {path}", remedy="Stop it first."
        )
    return record


def driver_pid(path: Path) -> int | None:
    """Return the process that drives a run now, None when none does.

    One of another machine is taken at its word: nothing here tells whether it lives.
    """
    record = life_record(path)
    if record is None:
        return None
    elsewhere = record.host not in ("", this_host())
    return record.pid if elsewhere or _is_headway(record.pid) else None


def life_record(path: Path) -> LifeRecord | None:
    """Return the record of the life that goes on or was killed, None when there is none.

    Raises RunDirectoryError when it cannot be read.
    """
    file = path / LIFE
    try:
        plain: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(plain["pid"], int):
            raise TypeError("pid must be a number")
        return LifeRecord(**plain)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunDirectoryError(
            f"{file} must say which process drives the run, and cannot be read: {error}",
            remedy="Make sure that no process drives the run, then delete that file.",
        ) from error


def begin_life(path: Path, record: LifeRecord) -> None:
    """Note that this process drives the run, whole or not at all.

    Raises RunDirectoryError when another process was faster.
    """
    temporary = path / f"{LIFE}.{record.pid}"
    temporary.write_text(json.dumps(asdict(record)) + "\n")
    try:
        os.link(temporary, path / LIFE)  # unlike a rename it fails where there is one
    except FileExistsError as error:
        raise RunDirectoryError(
            f"another process has just begun to run {path}", remedy="Stop one of the two."
        ) from error
    finally:
        temporary.unlink()


def end_life(path: Path) -> None:
    """Take back `begin_life`: nothing is left outside the run directory."""
    (path / LIFE).unlink(missing_ok=True)


def bury(path: Path, record: LifeRecord) -> None:
    """Remove the record of a life that was killed.

    Raises RunDirectoryError when another process did, and runs the run by now.
    """
    mine = path / f"{LIFE}.{os.getpid()}"
    try:
        (path / LIFE).rename(mine)  # one process at most gets it
        found = mine.read_text(encoding="utf-8")
    except FileNotFoundError:
        found = ""
    if found == "" or LifeRecord(**json.loads(found)) != record:
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(mine, path / LIFE)
        mine.unlink(missing_ok=True)
        raise RunDirectoryError(
            f"another process has just begun to run {path}", remedy="Stop one of the two."
        )
    mine.unlink()


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
