"""The environment's own arguments, `[environment.args]`, checked like every other key."""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

from headway.config.check import Mismatch, convert
from headway.config.clash import Clash
from headway.config.near import did_you_mean, nearest
from headway.config.schema import Key, keys_of
from headway.core.errors import EnvironmentSetupError
from headway.environments.registry import settings_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.config.compose import Config

PREFIX = "environment.args"


def argument_keys(name: str) -> dict[str, Key]:
    """Return the arguments of an environment.

    Raises EnvironmentSetupError when there is no such environment.
    """
    return keys_of(settings_type(name))


def environment_takes_its_arguments(config: Config) -> Iterator[Clash]:
    """An environment must exist and accept its arguments."""
    name, args = config.environment.name, config.environment.args
    try:
        settings = settings_type(name)
    except EnvironmentSetupError as error:
        yield Clash(("environment.name",), error.rule, error.remedy)
        return
    keys = keys_of(settings)
    found = [_clash(argument, rule, remedy) for argument, rule, remedy in _mismatches(name, keys, args)]
    yield from found
    if not found and hasattr(settings, "problems"):
        values = {
            argument: convert(value, keys[argument].hint, keys[argument].rule)
            for argument, value in args.items()
        }
        for problem in settings(**values).problems():
            yield _clash(problem.key, problem.rule, problem.remedy)


def with_all_arguments(config: Config) -> Config:
    """Return the config with the defaults of arguments that were not given."""
    keys = argument_keys(config.environment.name)
    defaults = {name: _as_toml(key.default) for name, key in keys.items() if key.default is not None}
    environment = dataclasses.replace(config.environment, args=defaults | config.environment.args)
    return dataclasses.replace(config, environment=environment)


def _mismatches(name: str, keys: dict[str, Key], args: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (argument, rule, remedy) for each that the environment refuses or lacks."""
    for argument, value in args.items():
        if argument not in keys:
            remedy = did_you_mean(nearest(argument, keys)) or f"It takes {', '.join(keys) or 'none'}"
            yield argument, f"is not an argument of the environment {name}", remedy
            continue
        try:
            convert(value, keys[argument].hint, keys[argument].rule)
        except Mismatch as mismatch:
            yield argument, mismatch.rule, mismatch.remedy
    for argument, key in keys.items():
        if key.is_required and argument not in args:
            yield argument, f"is required by the environment {name}: {key.doc.rstrip('.')}", ""


def _clash(argument: str, rule: str, remedy: str) -> Clash:
    return Clash((f"{PREFIX}.{argument}", PREFIX, "environment.name"), rule, remedy.removesuffix("."))


def _as_toml(value: Any) -> Any:
    """Return a default as TOML would give it, so that a config equals the one that is read back."""
    if isinstance(value, (list, tuple)):
        return [_as_toml(entry) for entry in typing.cast("list[Any]", value)]
    return value
