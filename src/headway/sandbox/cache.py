"""Where what is built once for all runs of a user is kept."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from headway.core.errors import SandboxUnavailableError


def cache_folder(name: str, remedy: str) -> Path:
    """Return `~/.cache/headway/<name>`, or one of the temporary folder's, that is the caller's own.

    Whoever can write to it decides what runs. Raises SandboxUnavailableError when there is none.
    """
    home = os.path.expanduser("~")
    tried = [Path(home, ".cache", "headway", name)] if os.access(home, os.W_OK) else []
    tried.append(Path(tempfile.gettempdir(), f"headway-{name}-{os.geteuid()}"))
    for folder in tried:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = folder.lstat()
            if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022:
                return folder
    raise SandboxUnavailableError(
        "sandboxes need a cache folder that nobody else can write to",
        value=" or ".join(map(str, tried)),
        remedy=f"Make your home folder writable, {remedy}",
    )
