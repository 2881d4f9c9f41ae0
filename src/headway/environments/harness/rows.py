"""Tasks of `harness`: what a row must say, and how it becomes files of the sandbox."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, cast

from headway.core.errors import EnvironmentSetupError, UserError
from headway.core.hooks import HookError, load_function
from headway.core.json_lines import json_object, text_lines
from headway.environments.faults import blamed

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
    rows: Any
    if not source.endswith(".jsonl"):
        try:
            load = load_function(source, ["split"])
        except HookError as error:
            at = f"environment.args.{key}"
            raise EnvironmentSetupError(error.rule, value=source, remedy=error.remedy, key=at) from error
        with blamed(f"making tasks ({source})"):
            rows = load(split)
        if not isinstance(rows, (list, tuple)):
            raise _wrong(f"{source} must return a list of tasks, not {type(rows).__name__}", key)
        made = cast("list[Any]", rows)
        return [_checked(row, f"row {at} of {source}", key) for at, row in enumerate(made)]
    path, found = Path(source).expanduser(), list[Row]()
    for number, line in text_lines(path, f"environment.args.{key}"):
        try:
            row = json_object(line)
        except UserError as error:
            raise _wrong(f"line {number} of {source} must be a task: {error.rule}", key) from None
        found.append(_checked(row, f"line {number} of {source}", key))
    return found


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
        if not isinstance(value, _KEYS[name]) or isinstance(value, bool):
            raise _wrong(f"{where} has a {name} of another type: {value!r}", key)
    for name in ("files", "test_files"):
        if not all(isinstance(text, str) for text in fields.get(name, {}).values()):
            raise _wrong(f"{where} must have texts in {name}", key)
        for path in fields.get(name, {}):
            if not _stays(path):
                raise _wrong(f"{where} must name {name} below /work: {path!r}", key)
    test = fields.get("test")
    if isinstance(test, list) and not all(isinstance(word, str) for word in cast("list[Any]", test)):
        raise _wrong(f"{where} must have words in test", key)
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise _wrong(f"{where} must be text that can be written: {error}", key) from None
    if not fields.get("prompt"):
        raise _wrong(f"{where} must have a prompt", key)
    return fields


def _stays(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path


def _wrong(rule: str, key: str) -> EnvironmentSetupError:
    remedy = "A task has a prompt, and may have files, test and test_files (docs/gateway.md)"
    return EnvironmentSetupError(rule, remedy=remedy, key=f"environment.args.{key}")
