"""Environments by name: built in, of an installed package, an import path `module:Class`, or a .py file.

A package offers environments by entry points of the group `headway.environments`, each with an import path.

An environment class has the parts of the `Environment` protocol, a class attribute `settings_type` (a frozen
dataclass, its arguments) and a constructor `(settings, seed)`; its docstring's first line is what
`headway env list` shows.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from inspect import (
    get_annotations,
    getattr_static,
    isclass,
    iscoroutinefunction,
    isfunction,
    signature,
    unwrap,
)
from typing import TYPE_CHECKING, Any, cast

from headway.core.check import describe_type
from headway.core.errors import EnvironmentSetupError
from headway.core.hooks import HookError, is_own, load_module
from headway.core.near import nearest
from headway.core.protocols import Environment
from headway.core.schema import keys_of
from headway.environments.arguments import read_arguments

if TYPE_CHECKING:
    from types import ModuleType


BUILT_IN = {
    "arithmetic": "headway.environments.arithmetic:Arithmetic",
    "bugfix": "headway.environments.bugfix.environment:Bugfix",
    "dataset": "headway.environments.dataset.environment:Dataset",
    "harness": "headway.environments.harness.environment:Harness",
    "python-code": "headway.environments.python_code:PythonCode",
    "swe-bench": "headway.environments.bugfix.swe_bench:SweBench",
}
FAMILIES = {
    "reasoning-gym": "headway.environments.reasoning_gym.environment",
    "verifiers": "headway.environments.verifiers.environment",
}
"""Environments `FAMILY:NAME`: a module whose `named` returns the class of a name; its `members` lists all."""
GROUP = "headway.environments"
_PARTS = {
    "settings_type": "settings_type = Settings, a frozen dataclass",
    "name": 'name = "mine"',
    "resume": 'resume = "restart"',
    "needs_sandbox": "needs_sandbox = False",
    "stop_strings": "stop_strings = ()",
    "system_prompt": "system_prompt = None",
    "num_tasks": "def num_tasks(self, split)",
    "task": "def task(self, split, index, level)",
    "prompt": "def prompt(self, task)",
    "rollout": "async def rollout(self, task, chat, sandbox)",
    "score": "async def score(self, task, outcome, sandbox)",
}
"""What the host asks of an environment, and how it is written."""


def names_and_summaries() -> list[tuple[str, str]]:
    """Return the environments that have names of their own with one line each, built-in ones first.

    A family is one, called FAMILY:NAME. One of an installed package that cannot be loaded has the reason for
    its line.
    """
    named: list[tuple[str, str]] = []
    families = [f"{family}:NAME" for family in FAMILIES]
    for name in [*sorted([*BUILT_IN, *families]), *sorted(installed())]:
        try:
            named.append((name, (environment_class(name).__doc__ or "").strip().partition("\n")[0]))
        except EnvironmentSetupError as error:
            if name not in installed():
                raise
            named.append((name, f"cannot be used: {error.rule}"))
    return named


@functools.cache
def installed() -> dict[str, str]:
    """Return the environments of installed packages: import paths by name. Built-in names stay built in."""
    return {point.name: point.value for point in entry_points(group=GROUP) if point.name not in BUILT_IN}


def members(family: str) -> list[tuple[str, str]]:
    """Return the environments of a family by their full names, each with what is to be known of it.

    Raises EnvironmentSetupError when there is no such family.
    """
    if family not in FAMILIES:
        raise EnvironmentSetupError(
            "no such family of environments", value=family, remedy=f"There is {', '.join(FAMILIES)}"
        )
    return import_module(FAMILIES[family]).members()


def settings_type(name: str) -> type:
    """Return the dataclass of an environment's arguments.

    Raises EnvironmentSetupError when there is no such environment.
    """
    return environment_class(name).settings_type


def may_need_sandbox(name: str, args: Mapping[str, Any]) -> bool:
    """Say whether an environment may use a sandbox, without building it.

    Its class says so or, where the arguments decide, a property `needs_sandbox` of its settings; one of which
    neither does may.

    Raises EnvironmentSetupError when there is no such environment, or its arguments do not hold.
    """
    declared: object = getattr(environment_class(name), "needs_sandbox", None)
    if declared is None:
        declared = getattr(read_settings(name, args), "needs_sandbox", True)
    return bool(declared)


def build(name: str, args: Mapping[str, Any] | None = None, seed: int = 0) -> Environment:
    """Return an environment; `seed` is the run's, and decides the order of its train tasks.

    Raises EnvironmentSetupError when it is unknown, incomplete, or its arguments do not hold.
    """
    cls = environment_class(name)
    environment = cls(read_settings(name, args or {}), seed)
    _need(name, [part for part in _PARTS if not hasattr(environment, part)])
    return environment


def read_settings(name: str, args: Mapping[str, Any]) -> Any:
    """Return the settings of an environment.

    Raises EnvironmentSetupError when it is unknown or its arguments do not hold.
    """
    settings, problems = read_arguments(name, environment_class(name).settings_type, args)
    if problems:
        first = problems[0]
        more = f" ({len(problems) - 1} more problem{'s'[: len(problems) > 2]})" if len(problems) > 1 else ""
        raise EnvironmentSetupError(
            f"{first.rule}{more}", value=first.value, remedy=first.remedy, key=f"environment.args.{first.key}"
        )
    return settings


def environment_class(name: str) -> type[Any]:
    """Return the environment class of a name.

    Raises EnvironmentSetupError when there is none, or it lacks a part.
    """
    family, colon, _ = name.partition(":")
    if colon and family in FAMILIES:
        return import_module(FAMILIES[family]).named(name)
    target = BUILT_IN.get(name, name)
    target = target if is_own(target) else installed().get(target, target)
    if not is_own(target):
        known = [*sorted(BUILT_IN), *sorted(installed())]
        near = difflib.get_close_matches(name, [*known, *FAMILIES], 1)
        guess = f"Did you mean {near[0]}{':NAME' * (near[0] in FAMILIES)}? " if near else ""
        raise EnvironmentSetupError(
            "no such environment",
            value=name,
            key="environment.name",
            remedy=f"{guess}There are {', '.join(known)} and "
            f"{', '.join(f'{family}:NAME' for family in FAMILIES)}; yours is module:Class or a .py file",
        )
    try:
        cls = _pick(*load_module(target), name)
    except HookError as error:
        near = nearest(family, FAMILIES, cutoff=0.8) if colon else None
        remedy = error.remedy if near is None else f"Did you mean {near}:{name.partition(':')[2]}?"
        raise EnvironmentSetupError(
            error.rule, value=error.value, remedy=remedy, key="environment.name"
        ) from error
    _need(name, [part for part in _PARTS if not _declares(cls, part)])
    _check_settings_type(name, cls.settings_type)
    _check_methods(name, cls)
    return cls


def _declares(cls: type[Any], part: str) -> bool:
    """Say whether a class has a part; an annotation promises that the constructor sets it.

    The protocol itself, which a class may inherit from, gives it nothing.
    """
    return any(
        part in vars(base) or part in get_annotations(base) for base in cls.__mro__ if base is not Environment
    )


def _need(name: str, missing: list[str]) -> None:
    """Raise EnvironmentSetupError when parts are missing."""
    if missing:
        raise EnvironmentSetupError(
            f"the environment lacks {', '.join(missing)}",
            value=name,
            key="environment.name",
            remedy=f"Add to the class: {'; '.join(_PARTS[part] for part in missing)} (docs/hooks.md)",
        )


def _check_methods(name: str, cls: type[Any]) -> None:
    """Raise EnvironmentSetupError when a method does not take what the host gives it, by position."""
    for part, form in _PARTS.items():
        method = getattr_static(cls, part, None)
        if "def " not in form or not isfunction(method):
            continue
        if form.startswith("async ") and not iscoroutinefunction(unwrap(method)):
            raise EnvironmentSetupError(
                f"the environment's {part} must be async: Headway awaits it",
                value=name,
                key="environment.name",
                remedy=f"Add to the class: {form} (docs/hooks.md)",
            )
        parameters = form[form.index("(") + 1 : form.index(")")].split(", ")
        try:
            signature(method).bind(*parameters)
        except TypeError as error:
            rule = f"the environment's {part} cannot be called as it should be: {error}"
            remedy = f"Write it as: {form} (docs/hooks.md)"
            raise EnvironmentSetupError(rule, value=name, key="environment.name", remedy=remedy) from error


def _check_settings_type(name: str, settings: type[Any]) -> None:
    """Raise EnvironmentSetupError unless it is a dataclass with types that TOML has."""
    why = "must be a dataclass"
    if dataclasses.is_dataclass(settings):
        try:
            for key in keys_of(settings).values():
                describe_type(key.hint)
        except NameError as error:  # an annotation of something that only type checkers import
            why = f"must have annotations that can be read: {error}"
        except KeyError as error:
            why = f"must have types that TOML has, not {error}"
        else:
            return
    rule = f"the environment's settings_type {why}"
    remedy = "Make it a frozen dataclass whose fields are made with headway.core.settings.setting"
    raise EnvironmentSetupError(rule, value=name, remedy=remedy, key="environment.name")


def _pick(module: ModuleType, attribute: str, name: str) -> type[Any]:
    """Return the class that a module holds under a name, or its only environment when it names none."""
    if attribute:
        found = getattr(module, attribute, None)
        if not isclass(found):
            rule = f"{name.rpartition(':')[0]} has no class {attribute}"
            remedy = "Write module:Class or file.py:Class with a class that is there"
            raise EnvironmentSetupError(rule, value=name, remedy=remedy, key="environment.name")
        return found
    classes = [
        cast("type[Any]", value)
        for value in vars(module).values()
        if isclass(value) and value.__module__ == module.__name__ and hasattr(value, "rollout")
    ]
    if len(classes) != 1:
        raise EnvironmentSetupError(
            f"the file must hold exactly one class with a rollout method, it holds {len(classes)}",
            value=name,
            key="environment.name",
            remedy="Name the class: file.py:Class",
        )
    return classes[0]
