"""Answers of judges on disk, a file a request, by the hash of all that the answer depends on.

Shared by any number of processes, and safe to kill: a file appears whole, by a rename. A file that cannot be
read is no answer, and is written anew. Those that were used longest ago are removed; a folder, or a part of
it, may be deleted at any time. No secret is in it: neither a request's headers nor its text are.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

_FORMAT = 1


def key_of(request: dict[str, Any]) -> str:
    """Return what names a request."""
    text = json.dumps([_FORMAT, request], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


class Cache:
    """One folder; it is made at the first answer.

    Args:
        folder: of the files.
        max_entries: that are kept, and for each process that writes at most a sixteenth of them more.
    """

    def __init__(self, folder: Path, max_entries: int = 100_000) -> None:
        self._folder = folder
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._num_until_clean = 0  # answers that may be written before anybody counts

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was kept for a key, None for nothing that can be read."""
        path = self._path(key)
        try:
            found: object = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        with suppress(OSError):  # another process may have removed it just now
            os.utime(path)
        return cast("dict[str, Any]", found) if isinstance(found, dict) else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep an answer; OSError where it cannot be written."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                json.dump(value, file)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        with self._lock:
            self._num_until_clean -= 1
            if self._num_until_clean < 0:
                self._num_until_clean = max(1, self._max_entries // 16)
                self._clean()

    def _clean(self) -> None:
        """Remove what was used longest ago; an OSError is somebody else's removal."""
        found: list[tuple[float, Path]] = []
        for path in self._folder.glob("??/*.json"):
            with suppress(OSError):
                found.append((path.stat().st_mtime, path))
        found.sort()
        for _, path in found[: max(0, len(found) - self._max_entries)]:
            with suppress(OSError):
                path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
