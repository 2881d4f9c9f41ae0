"""Which checkpoints of a directory are complete. No torch.

Invariant: a checkpoint is written under another name, its manifest last, fsynced, and renamed; it counts only
if every file in the manifest has its size. So resume never picks an incomplete one.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError
from headway.weights.atomic import remove_directory, whole_directory

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return where the checkpoint after `step` optimizer steps lives."""
    return directory / f"step-{step:06d}"


@contextlib.contextmanager
def writing(directory: Path, step: int, facts: Mapping[str, Any]) -> Generator[Path]:
    """Yield a directory to fill; at the end it becomes the checkpoint of `step`, whole and durable.

    `facts` are JSON values for the manifest.
    """
    with whole_directory(checkpoint_path(directory, step), durable=True) as staging:
        yield staging
        files = {
            str(path.relative_to(staging)): path.stat().st_size
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        }
        manifest = {"format": FORMAT, "step": step, **facts, "files": files}
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest.

    Raises HeadwayError when the checkpoint is not there, incomplete, or of another format.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        found, files = manifest["format"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeadwayError(f"checkpoint {path} must have a readable {MANIFEST}; {error}") from error
    if found != FORMAT:
        raise HeadwayError(f"checkpoint {path} must have format {FORMAT}", value=found)
    for name, num_bytes in files.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else -1
        if size != num_bytes:
            raise HeadwayError(
                f"checkpoint {path} is incomplete: {name} must have {num_bytes} bytes", value=size
            )
    return manifest


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


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the newest complete checkpoint, or None."""
    found = complete_checkpoints(directory)
    return found[-1] if found else None


def retain(directory: Path, step: int, keep: int) -> None:
    """Keep the newest `keep` complete checkpoints up to `step`, the one just written.

    Later ones are of a branch that a rollback lost, and resume must not pick them. Incomplete ones are left
    for a person to see.
    """
    if keep < 1:
        raise HeadwayError("at least one checkpoint must be kept", value=keep)
    found = complete_checkpoints(directory)
    kept = [path for path in found if path <= checkpoint_path(directory, step)][-keep:]
    for path in found:
        if path not in kept:
            remove_directory(path)
