"""Builds the helper once for each version of its source, into the user's cache folder.

The folder's name holds a hash of the source, the flags and the machine, and a finished file appears in it by
an atomic rename, so that two processes may build at once and a changed source never meets an old build.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from headway.core.errors import SandboxUnavailableError
from headway.sandbox.cache import cache_folder

_SOURCE = Path(__file__).with_name("cell.c")
_FLAGS = ("-O2", "-std=gnu11", "-fno-strict-aliasing", "-fstack-protector-strong")
_COMPILERS = ("cc", "gcc", "clang")
_FALLBACK = 'or set sandbox.provider = "bubblewrap", which needs none'

Kind = Literal["program", "library"]


def helper(kind: Kind) -> Path:
    """Return the built helper, as a program or as a library for an interpreter; blocks while it is built.

    Raises SandboxUnavailableError when there is no compiler, or it fails.
    """
    source = _SOURCE.read_bytes()
    parts = [source, " ".join(_FLAGS).encode(), platform.machine().encode(), platform.libc_ver()[1].encode()]
    name = "cell" if kind == "program" else "cell.so"
    built = cache_folder("native", _FALLBACK) / hashlib.sha256(b"\0".join(parts)).hexdigest()[:16] / name
    if not built.exists():
        _build(kind, built)
    return built


def _build(kind: Kind, built: Path) -> None:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise SandboxUnavailableError(
            "the local sandbox needs a C compiler, and there is no cc, gcc or clang",
            remedy=f"Install one (`apt install gcc libc6-dev`; `dnf`, `pacman` likewise), {_FALLBACK}",
        )
    built.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent, prefix="draft-") as draft:
        target = Path(draft) / built.name
        shape = [] if kind == "program" else ["-shared", "-fPIC"]
        command = [compiler, *_FLAGS, *shape, "-o", str(target), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = next(iter(done.stderr.strip().splitlines()), "it said nothing")
            raise SandboxUnavailableError(
                f"the local sandbox's helper could not be compiled: {said}",
                value=" ".join(command),
                remedy=f"Install the C library's headers (`apt install libc6-dev`), {_FALLBACK}",
            )
        target.rename(built)
