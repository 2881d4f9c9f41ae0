"""Where models that Headway makes or fetches are kept, and how they get there whole.

A model is built in a temporary directory beside its place and renamed into it, so that its place either holds
a complete model or nothing. A manifest with each file's size and SHA-256 shows later damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from headway.core.errors import ModelError

MANIFEST = "headway_manifest.json"


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the cache directory: `cache_dir`, else $HEADWAY_CACHE, else headway/ in the user's cache."""
    if cache_dir is not None:
        return cache_dir
    if named := os.environ.get("HEADWAY_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway"


def model_dir(name: str, cache_dir: Path | None = None) -> Path:
    """Return the directory of the cached model `name`, whether or not it is there."""
    return cache_root(cache_dir) / "models" / name


def write_manifest(path: Path, source: str) -> None:
    """Record size and SHA-256 of every file in `path`, and where the model came from."""
    files = {
        file.name: {"size_bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(path.iterdir())
        if file.is_file() and file.name != MANIFEST
    }
    (path / MANIFEST).write_text(json.dumps({"format": 1, "source": source, "files": files}, indent=2) + "\n")


def is_made_from(path: Path, source: str) -> bool:
    """Return whether `path` holds a model whose manifest names this source, whole or not."""
    try:
        return json.loads((path / MANIFEST).read_text(encoding="utf-8")).get("source") == source
    except (OSError, ValueError, AttributeError):
        return False


def check_manifest(path: Path, *, hashes: bool) -> None:
    """Raise ModelError if a file that the manifest of `path` lists is missing or differs.

    Args:
        path: a model directory; one without a manifest passes.
        hashes: compare SHA-256 too, not only sizes (about 0.3 s for 260 MB).
    """
    manifest = path / MANIFEST
    if not manifest.exists():
        return
    remedy = f"Delete {path} and fetch the model again"
    try:
        files: dict[str, dict[str, object]] = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError) as error:
        raise ModelError("A model's manifest must be readable", value=str(manifest), remedy=remedy) from error
    for name, facts in files.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else None
        if size != facts["size_bytes"]:
            found = "missing" if size is None else f"{size} bytes"
            rule = f"The model is incomplete: {name} must have {facts['size_bytes']} bytes"
            raise ModelError(rule, value=found, remedy=remedy)
        if hashes and sha256(file) != facts["sha256"]:
            rule = f"The model is damaged: {name} must have the SHA-256 of its manifest"
            raise ModelError(rule, value=str(file), remedy=remedy)


def install(target: Path, source: str, build: Callable[[Path], None]) -> Path:
    """Make the model directory `target` by `build`, all or nothing; whatever was there is replaced.

    Two processes may do so at the same time: each builds its own copy and one of them stays.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        rule = f"The model cache must be writable; {error.strerror}"
        remedy = "Set HEADWAY_CACHE to a folder that you may write to"
        raise ModelError(rule, value=str(target.parent), remedy=remedy) from error
    try:
        build(staging)
        write_manifest(staging, source)
        staging.chmod(0o755)
        for _ in range(10):
            with contextlib.suppress(OSError):
                staging.rename(target)
                return target
            # The place is taken: move what is there aside, for a rename replaces only an empty directory.
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            with contextlib.suppress(FileNotFoundError):
                target.rename(aside / "model")
            shutil.rmtree(aside, ignore_errors=True)
        rule = "A model must be movable to its place in the cache"
        raise ModelError(rule, value=str(target), remedy="Check the directory's owner and free space")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
