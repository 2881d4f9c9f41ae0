"""Tasks of `harness`: what a row must say, and how it becomes files of the sandbox."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, cast

from headway.core.errors import EnvironmentSetupError
from headway.core.hooks import HookError, load_function

Row = dict[str, Any]

_KEYS: dict[str, type | tuple[type, ...]] = {
    "id": (str, int),
    "prompt": str,
    "split": str,
    "level": int,
    "files": dict,
    "test": (str, list),
    "test_files": dict,
}


def read_rows(source: str, split: str, key: str) -> list[Row]:
    """Return the rows of a file, or of a function for a split.

    Raises EnvironmentSetupError naming the row and what is wrong with it.
    """
    if not source.endswith(".jsonl"):
        try:
            rows: Any = load_function(source, ["split"])(split)
        except HookError as error:
            at = f"environment.args.{key}"
            raise EnvironmentSetupError(error.rule, value=source, remedy=error.remedy, key=at) from error
        return [_checked(row, f"{source} row {at}", key) for at, row in enumerate(cast("list[Any]", rows))]
    try:
        lines = Path(source).expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _wrong(f"the file of tasks must be there: {error}", key) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise _wrong(f"line {number} of {source} must be JSON: {error}", key) from error
            rows.append(_checked(row, f"line {number} of {source}", key))
    return rows


def archive(files: dict[str, str], folder: str = "") -> bytes:
    """Return files, and what a folder holds, as a tar archive; files of a name that both have come last."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        if folder:
            for path in sorted(Path(folder).expanduser().iterdir()):
                tar.add(path, path.name)
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if text.startswith("#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def _checked(row: Any, where: str, key: str) -> Row:
    if not isinstance(row, dict):
        raise _wrong(f"{where} must be an object", key)
    fields = cast("Row", row)
    for name, value in fields.items():
        if name not in _KEYS:
            raise _wrong(f"{where} has {name!r}, which is none of {', '.join(_KEYS)}", key)
        if not isinstance(value, _KEYS[name]):
            raise _wrong(f"{where} has a {name} of another type: {value!r}", key)
    for name in ("files", "test_files"):
        if not all(isinstance(text, str) for text in fields.get(name, {}).values()):
            raise _wrong(f"{where} must have texts in {name}", key)
    if not fields.get("prompt"):
        raise _wrong(f"{where} must have a prompt", key)
    return fields


def _wrong(rule: str, key: str) -> EnvironmentSetupError:
    remedy = "A task has a prompt, and may have files, test and test_files (docs/gateway.md)"
    return EnvironmentSetupError(rule, remedy=remedy, key=f"environment.args.{key}")
