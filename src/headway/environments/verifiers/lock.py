"""Lock files: exact versions of all that a virtual environment holds, with the hashes of what pip fetched.

A line is NAME==VERSION, with --hash=sha256:HEX behind it wherever pip installed a file and not a folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headway.core.errors import EnvironmentSetupError
from headway.environments.verifiers.places import Installed, normal

_HEAD = "# headway env install "
_HASH = " --hash="
_LINE = re.compile(r"[A-Za-z0-9._-]+==\S+( --hash=sha256:[0-9a-f]{64})*")


def lock_text(one: Installed) -> str:
    """Return a package's lock file."""
    words = f"{_HEAD}{one.name}@{one.version} (Python {one.python})"
    return "\n".join([words, *one.lock]) + "\n"


def read_lock(path: Path) -> list[str]:
    """Return the lines of a lock file.

    Raises EnvironmentSetupError for a line that is none.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentSetupError(
            f"the lock file must be readable: {error}",
            value=str(path),
            remedy="Name a file that `headway env install --lock FILE` wrote",
        ) from error
    lines = [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    for line in found:
        if not _LINE.fullmatch(line):
            raise EnvironmentSetupError(
                "each line of a lock file must be NAME==VERSION, or NAME==VERSION --hash=sha256:HEX",
                value=line,
                remedy="Take the file that `headway env install NAME --lock FILE` writes",
            )
    return found


def name_of(line: str) -> str:
    """Return which package a line is about, as registries compare names."""
    return normal(line.partition("==")[0])


def has_hash(line: str) -> bool:
    """Return whether a line says what the file's hash must be."""
    return _HASH in line


def without_hash(line: str) -> str:
    """Return a line's NAME==VERSION."""
    return line.partition(_HASH)[0]


def differing(wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return what two locks do not agree about; a hash that one of them lacks is no matter."""
    one, other = _hashes(wanted), _hashes(found)
    lone = sorted(one.keys() ^ other.keys())
    both = sorted(one.keys() & other.keys())
    return lone + [
        f"{pin} (its hash)" for pin in both if one[pin] and other[pin] and not one[pin] & other[pin]
    ]


def _hashes(lines: Sequence[str]) -> dict[str, set[str]]:
    return {without_hash(line): set(line.split(_HASH)[1:]) for line in lines}
