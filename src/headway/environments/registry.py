"""Environments by name: built in, an import path `module:Class`, or a plain .py file.

An environment class has a class attribute `settings_type` (a frozen dataclass, its arguments) and a
constructor `(settings, seed)`; its docstring's first line is what `headway env list` shows.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import EnvironmentSetupError
from headway.environments.arguments import read_arguments

if TYPE_CHECKING:
    from types import ModuleType

    from headway.core.protocols import Environment
    from headway.core.settings import Problem

BUILT_IN = {
    "arithmetic": "headway.environments.arithmetic:Arithmetic",
    "python-code": "headway.environments.python_code:PythonCode",
}
_PARTS = ("num_tasks", "task", "prompt", "rollout", "score")


def names_and_summaries() -> list[tuple[str, str]]:
    """Return the built-in environments with one line each."""
    return [(name, (_load(name).__doc__ or "").strip().partition("\n")[0]) for name in sorted(BUILT_IN)]


def argument_problems(name: str, args: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with an environment's arguments, keys relative to `[environment.args]`.

    Raises EnvironmentSetupError when there is no such environment.
    """
    return read_arguments(_load(name).settings_type, args)[1]


def settings_type(name: str) -> type:
    """Return the dataclass of an environment's arguments.

    Raises EnvironmentSetupError when there is no such environment.
    """
    return _load(name).settings_type


def build(name: str, args: Mapping[str, Any] | None = None, seed: int = 0) -> Environment:
    """Return an environment; `seed` is the run's, and decides the order of its train tasks.

    Raises EnvironmentSetupError when it is unknown, incomplete, or its arguments do not hold.
    """
    cls = _load(name)
    settings, problems = read_arguments(cls.settings_type, args or {})
    if problems:
        first = problems[0]
        more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise EnvironmentSetupError(
            f"{first.rule}{more}", value=first.value, remedy=first.remedy, key=f"environment.args.{first.key}"
        )
    return cls(settings, seed)


def _load(name: str) -> Any:
    """Return the environment class of a name."""
    target = BUILT_IN.get(name, name)
    if target.partition(":")[0].endswith(".py"):
        file, _, attribute = target.partition(":")
        cls = _pick(_import_file(Path(file)), attribute, name)
    elif ":" in target:
        module, _, attribute = target.partition(":")
        try:
            cls = _pick(importlib.import_module(module), attribute, name)
        except ImportError as error:
            raise EnvironmentSetupError(
                f"the environment's module cannot be imported: {error}", value=name, key="environment.name"
            ) from error
    else:
        near = difflib.get_close_matches(name, BUILT_IN, 1)
        guess = f"Did you mean {near[0]}? " if near else ""
        raise EnvironmentSetupError(
            "no such environment",
            value=name,
            key="environment.name",
            remedy=f"{guess}Built in are {', '.join(sorted(BUILT_IN))}; yours is module:Class or a .py file",
        )
    missing = [part for part in (*_PARTS, "settings_type") if not hasattr(cls, part)]
    if missing:
        raise EnvironmentSetupError(
            f"an environment needs {', '.join(missing)}", value=name, key="environment.name"
        )
    return cls


def _import_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headway_environment_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise EnvironmentSetupError(
            "the environment's file does not exist", value=str(file), key="environment.name"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise EnvironmentSetupError(
            f"the environment's file raised {type(error).__name__}: {error}",
            value=str(file),
            key="environment.name",
        ) from error
    return module


def _pick(module: ModuleType, attribute: str, name: str) -> type:
    if attribute:
        found = getattr(module, attribute, None)
        if not inspect.isclass(found):
            raise EnvironmentSetupError(
                f"{module.__name__} has no class {attribute}", value=name, key="environment.name"
            )
        return found
    classes = [
        cast("type", value)
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "rollout")
    ]
    if len(classes) != 1:
        raise EnvironmentSetupError(
            f"the file must hold exactly one class with a rollout method, it holds {len(classes)}",
            value=name,
            key="environment.name",
            remedy="Name the class: file.py:Class",
        )
    return classes[0]
