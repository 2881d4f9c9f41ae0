"""Which packages are installed, and where: virtual environments in Headway's cache, and a record of each.

A package's record is written when its virtual environment is whole, in place of an earlier one; so a name
either leads to a whole environment or to nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.core.errors import EnvironmentSetupError
from headway.core.near import did_you_mean, nearest
from headway.models.cache import cache_root

PREFIX = "verifiers:"


@dataclass(frozen=True, slots=True)
class Installed:
    """One package."""

    name: str  # as in verifiers:NAME
    version: str
    verifiers: str  # version of the library
    python: str  # version
    source: str  # what was installed: a name with its version, or a path
    venv: str  # folder of its virtual environment
    lock: tuple[str, ...]  # lines of lock.py for all that is there, the package itself first

    @property
    def executable(self) -> Path:
        """Its Python."""
        return Path(self.venv) / "bin" / "python"


def normal(name: str) -> str:
    """Return a package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def folder() -> Path:
    """Return where records and virtual environments are."""
    return cache_root() / "environments"


def installed() -> list[Installed]:
    """Return the installed packages by name."""
    found = [_read(path) for path in sorted(folder().glob("*.json"))]
    return [one for one in found if one is not None]


def find(name: str) -> Installed:
    """Return an installed package.

    Raises EnvironmentSetupError with what to do when there is none.
    """
    found = _read(folder() / f"{normal(name)}.json")
    if found is not None and found.executable.exists():
        return found
    near = did_you_mean(nearest(normal(name), [one.name for one in installed()]))
    command = f"headway env install {normal(name)}"
    raise EnvironmentSetupError(
        "the package must be installed",
        value=PREFIX + name,
        remedy=f"{near} {command}" if near else f"Run {command}",
        key="environment.name",
    )


def record(one: Installed) -> None:
    """Make a package known, in place of an earlier one of its name, which is removed."""
    path = folder() / f"{one.name}.json"
    earlier = _read(path)
    staged = path.with_suffix(".part")
    staged.write_text(json.dumps(asdict(one), indent=2) + "\n", encoding="utf-8")
    staged.replace(path)
    if earlier is not None and earlier.venv != one.venv:
        shutil.rmtree(earlier.venv, ignore_errors=True)


def _read(path: Path) -> Installed | None:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return Installed(**known | {"lock": tuple(known["lock"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def already(source: str) -> Installed | None:
    """Return the package that a name, or NAME@version, stands for; None for a path or another version."""
    name, _, version = source.partition("@")
    found = _read(folder() / f"{normal(name)}.json") if re.fullmatch(r"[A-Za-z0-9._-]+", name) else None
    if found is None or not found.executable.exists() or (version and version.lstrip("=") != found.version):
        return None
    return found
