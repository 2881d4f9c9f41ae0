"""Files that environments take as arguments: they are there before anything is made for the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.arguments import argument_keys, environments_of
from headway.core.errors import EnvironmentSetupError
from headway.core.hooks import file_of, is_own
from headway.environments.registry import build
from headway.runtime.preflight.findings import Finding, failed, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject

_REMEDY = "In a config file a path is relative to its folder, on the command line to the current one"
_QUICK_BYTES = 4 << 20  # JSON of that size is read in a moment
_LOOK_BYTES = 1 << 16  # a longer file that begins with blanks alone is read by its environment


def files(subject: Subject) -> Iterator[Finding]:
    """Each is there, readable and not empty; rows of `dataset` are read, where that takes no time.

    What is in others is looked at when the environment is built.
    """
    names: list[str] = []
    well = True
    for prefix, environment, args in environments_of(subject.config):
        paths: list[Path] = []
        for key in argument_keys(environment).values():
            path = _path(args.get(key.name), key.rule.names)
            if path is None:
                continue
            paths.append(path)
            if why := _wrong(path):
                well = False
                yield from failed(
                    EnvironmentSetupError(
                        f"the file must {why}",
                        value=str(path),
                        remedy=_REMEDY,
                        key=f"{prefix}.{key.name}",
                    )
                )
        names += [path.name for path in paths]
        if well and environment == "dataset" and _is_quick(paths):
            build(environment, args)
    if well:
        yield ok(f"{', '.join(dict.fromkeys(names))}: there" if names else "no environment takes one")


def _path(value: object, names: str) -> Path | None:
    """Return the file or folder that an argument names on this machine, None for none."""
    if not names or not value or not isinstance(value, str) or value.startswith("hf:"):
        return None
    path = Path(value)
    if names == "hook" or (names == "either" and is_own(value) and not path.exists()):
        return file_of(value)
    return path


def _is_quick(paths: list[Path]) -> bool:
    return all(
        path.suffix != ".parquet" and path.is_file() and path.stat().st_size <= _QUICK_BYTES for path in paths
    )


def _wrong(path: Path) -> str:
    """Return what is wrong with it, "" for nothing."""
    if not path.exists():
        return "exist"
    if not os.access(path, os.R_OK):
        return "be readable"
    if not path.is_dir():
        if not path.is_file():
            return "be a file or a folder"
        with path.open("rb") as file:
            begin = file.read(_LOOK_BYTES)
        if len(begin) < _LOOK_BYTES and not begin.strip():
            return "not be empty"
    return ""
