"""A user's own code by name: a file `path/file.py` or `path/file.py:Name`, or an import path `module:Name`.

A file is a module of this process under a name made from its resolved path, so that what needs its module
(dataclasses, typing, pickle) finds it, and two files of the same name do not meet. It is run once a process.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

_PACKAGE = Path(__file__).parents[1]
_STANDARD_LIBRARY = Path(os.__file__).parent
_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<attribute>[^:/\\]*))?")


class HookError(UserError):
    """A hook's file or module cannot be loaded, or does not hold what its name says."""


def is_own(name: str) -> bool:
    """Say whether a name means a user's own code: a file or an import path."""
    return ":" in name or _FILE.fullmatch(name) is not None


def absolute(name: str, folder: Path) -> str:
    """Return a name whose file, when it names one, does not depend on the current directory.

    Args:
        name: any name of a hook.
        folder: what a relative path is relative to.
    """
    match = _FILE.fullmatch(name)
    return name if match is None else os.path.abspath(folder / match["file"]) + name[match.end("file") :]


def file_of(name: str) -> Path | None:
    """Return the file that a name of a hook means, None where it means an import path."""
    match = _FILE.fullmatch(name)
    return None if match is None else Path(match["file"])


def load_module(name: str) -> tuple[ModuleType, str]:
    """Return the module that a name means, and the attribute that it names, empty when it names none.

    Raises HookError when the file does not exist, or the module cannot be imported or raises meanwhile.
    """
    match = _FILE.fullmatch(name)
    if match is not None:
        return _import_file(Path(match["file"]), name), match["attribute"] or ""
    module, _, attribute = name.partition(":")
    try:
        return importlib.import_module(module), attribute
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        remedy = "Modules are found in the current directory and where Python finds installed ones"
        raise HookError(f"the module {module} {_raised(error)}", value=name, remedy=remedy) from error


def load_function(name: str, parameters: Sequence[str], *, may_await: bool = False) -> Any:
    """Return the function that a name means; it takes `parameters` by position.

    It may be async where `may_await` says so.

    Raises HookError when it cannot be loaded, or cannot be called so.
    """
    module, attribute = load_module(name)
    where = name.rpartition(":")[0] if attribute else name
    function = getattr(module, attribute, None) if attribute else None
    if not callable(function):
        rule = f"{where} must have a function {attribute!r}" if attribute else "must name a function"
        raise HookError(rule, value=name, remedy="Write module:function or file.py:function")
    form = f"{attribute}({', '.join(parameters)})"
    if iscoroutinefunction(function) and not may_await:
        raise HookError(
            f"must not be async: it is called as {form}",
            value=name,
            remedy="Write it with def, not async def",
        )
    try:
        signature(function).bind(*parameters)
    except TypeError as error:
        raise HookError(
            f"must be callable as {form}: {error}",
            value=name,
            remedy="Give it these parameters, in this order",
        ) from error
    except ValueError:
        pass  # some functions written in C tell nothing of themselves
    return function


def place_in_hook(error: BaseException) -> str:
    """Return `FILE:LINE` of the user's code that raised, empty where Headway's own did."""
    frame = frame_to_blame(error)
    return "" if frame is None else f"{frame.filename}:{frame.lineno}"


def frame_to_blame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost line of the user's own code on the way to an error, None where there is none.

    What raised below it, Python's library or an installed package, was called by it. A hook may be of an
    installed package itself: without any code of the user's own it is the last line in the first such file.
    """
    if users := frames_of_users(error):
        return users[-1]
    frames = traceback.extract_tb(error.__traceback__)
    packages = [frame for frame in frames if _is_packages(Path(frame.filename))]
    return next((frame for frame in reversed(packages) if frame.filename == packages[0].filename), None)


def place_of_users(error: BaseException) -> str:
    """Return `FILE:LINE` of the last line of the user's own code on the way to an error, empty without."""
    frames = frames_of_users(error)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def frames_of_users(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of the user's own code on the way to an error, outermost first."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]


def is_users(file: str) -> bool:
    """Say whether a file of code is neither Headway's, nor Python's, nor an installed package's."""
    path = Path(file)
    if file[:1] == "<" or path.is_relative_to(_PACKAGE) or path.is_relative_to(_STANDARD_LIBRARY):
        return False
    return not _is_packages(path)


def _is_packages(path: Path) -> bool:
    """Say whether a file is of an installed package, Headway's own left out."""
    return bool({"site-packages", "dist-packages"} & set(path.parts)) and not path.is_relative_to(_PACKAGE)


def _import_file(file: Path, name: str) -> ModuleType:
    if not file.is_file():
        remedy = "" if file.is_absolute() else f"It was looked for at {file.absolute()}"
        raise HookError("the file does not exist", value=name, remedy=remedy)
    path = file.resolve()
    unique = f"headway_hook_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[unique] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[unique]
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise HookError(
            f"the file {_raised(error)}",
            value=name,
            remedy="Mend that line: the file is imported as a module",
        ) from error
    return module


def _raised(error: BaseException) -> str:
    """Return what was raised and by which line of somebody else's code."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:  # no line of it ran
        return f"raised {type(error).__name__}: {error.msg} at {Path(error.filename).name}:{error.lineno}"
    frame = frame_to_blame(error) or traceback.extract_tb(error.__traceback__)[-1]
    at = "" if frame.filename.startswith("<") else f" at {Path(frame.filename).name}:{frame.lineno}"
    return f"raised {type(error).__name__}: {error}{at}"
