"""Which checkpoints of a directory are complete, undamaged, and of the surviving branch. No torch.

Invariant: a checkpoint is written under another name, its record last, fsynced, and renamed; it counts only
if every file in the record has its size, and is gone on from only if every file has its SHA-256. So resume
never picks an incomplete or a damaged one.
A rollback or a resume from an older checkpoint leaves newer ones behind whose steps are lost. They are of a
lower lineage than the steps that replace them: `survives` tells them by that, `discard_after` removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError
from headway.weights.atomic import remove_directory, whole_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence
    from pathlib import Path

FORMAT = 2
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return where the checkpoint after `step` optimizer steps lives."""
    return directory / f"step-{step:06d}"


@contextlib.contextmanager
def writing(directory: Path, step: int, facts: Mapping[str, Any], *, lineage: int = 0) -> Generator[Path]:
    """Yield a directory to fill; at the end it becomes the checkpoint of `step`, whole and durable.

    Args:
        directory: where checkpoints live.
        step: optimizer steps applied.
        facts: JSON values for the record.
        lineage: the life whose steps these are.
    """
    with whole_directory(checkpoint_path(directory, step), durable=True) as staging:
        yield staging
        files = {
            str(path.relative_to(staging)): {"num_bytes": path.stat().st_size, "sha256": _sha256(path)}
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        }
        record = {"format": FORMAT, "step": step, "lineage": lineage, **facts, "files": files}
        (staging / MANIFEST).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_checkpoint(path: Path, *, hashes: bool = False) -> dict[str, Any]:
    """Return a checkpoint's record; with `hashes` every file is read and compared with it.

    Raises HeadwayError when the checkpoint is not there, incomplete, damaged, or of another format.
    """
    try:
        record: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        found, files = record["format"], dict(record["files"])
        if not isinstance(record["step"], int) or not isinstance(record.get("lineage", 0), int):
            raise TypeError("step and lineage must be numbers")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadwayError(f"checkpoint {path} must have a readable {MANIFEST}; {error}") from error
    if found != FORMAT:
        raise HeadwayError(f"checkpoint {path} must have format {FORMAT}", value=found)
    for name, facts in files.items():
        file, num_bytes = path / name, facts["num_bytes"]
        size = file.stat().st_size if file.is_file() else None
        if size != num_bytes:
            raise HeadwayError(
                f"checkpoint {path} is incomplete: {name} must have {num_bytes} bytes",
                value="no such file" if size is None else size,
            )
        if hashes and _sha256(file) != facts["sha256"]:
            raise HeadwayError(f"checkpoint {path} is damaged: the SHA-256 of {name} is not the record's")
    return record


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complete_checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints of a directory, oldest first; an absent directory has none."""
    if not directory.is_dir():
        return []
    found: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(HeadwayError):  # incomplete: not a checkpoint
            read_checkpoint(path)
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found)]


def survives(step: int, lineage: int, forks: Sequence[int]) -> bool:
    """Say whether the weights after `step` steps of a lineage are an ancestor of the newest ones.

    `forks[l]` is the step at which lineage l + 1 left l.
    """
    return step <= min(forks[lineage:], default=step)


def find_checkpoint(directory: Path, forks: Sequence[int] = ()) -> tuple[Path | None, list[str]]:
    """Return the newest undamaged checkpoint of the surviving branch, and what is wrong with newer ones.

    A checkpoint whose record cannot be read may be of a lost branch; it is among the damaged all the same.
    """
    found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)] if directory.is_dir() else []
    damaged: list[str] = []
    for path in sorted(found, key=step_of, reverse=True):
        try:
            record = read_checkpoint(path)
            if survives(record["step"], record["lineage"], forks):
                read_checkpoint(path, hashes=True)
                return path, damaged
        except HeadwayError as error:
            damaged.append(error.rule)
    return None, damaged


def step_of(path: Path) -> int:
    """Return the step of a checkpoint by its name."""
    return int(path.name.rpartition("-")[2])


def num_bytes(path: Path) -> int:
    """Return the bytes of a checkpoint's files, by its record.

    Raises HeadwayError when the checkpoint is not complete.
    """
    files = read_checkpoint(path)["files"]
    return (path / MANIFEST).stat().st_size + sum(facts["num_bytes"] for facts in files.values())


def beyond(
    directory: Path, step: int, keep: int, *, every: int = 0, also: Collection[int] = ()
) -> list[Path]:
    """Return the complete checkpoints that are not to be kept.

    Kept are the newest `keep` up to `step`, the one just written; earlier ones of a multiple of `every`
    steps; and those of the steps `also`. Later ones than `step` are of a branch that a rollback lost, and
    resume must not pick them. Incomplete ones are left for a person to see.
    """
    if keep < 1:
        raise HeadwayError("at least one checkpoint must be kept", value=keep)
    found = complete_checkpoints(directory)
    steps = [step_of(path) for path in found if step_of(path) <= step]
    kept = {*steps[-keep:], *(s for s in steps if s in also or (every and s % every == 0))}
    return [path for path in found if step_of(path) not in kept]


def retain(directory: Path, step: int, keep: int, *, every: int = 0, also: Collection[int] = ()) -> None:
    """Remove what `beyond` returns."""
    for path in beyond(directory, step, keep, every=every, also=also):
        remove_directory(path)


def discard_after(directory: Path, step: int) -> None:
    """Remove complete checkpoints newer than `step`: the run goes on from there, and their steps are lost."""
    for path in complete_checkpoints(directory):
        if path > checkpoint_path(directory, step):
            remove_directory(path)
