"""Answers of judges on disk, a file a request, by the hash of all that the answer depends on.

Shared by any number of processes, and safe to kill: a file appears whole, by a rename. A file that cannot be
read is no answer, and is written anew. Nothing is ever removed; a folder, or a part of it, may be deleted at
any time. No secret is in it: neither a request's headers nor its text are.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, cast

_FORMAT = 1


def key_of(request: dict[str, Any]) -> str:
    """Return what names a request."""
    text = json.dumps([_FORMAT, request], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


class Cache:
    """One folder; it is made at the first answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was kept for a key, None for nothing that can be read."""
        try:
            found: object = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
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

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
