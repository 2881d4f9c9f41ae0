"""The environment's own arguments, `[environment.args]`, checked like every other key."""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

from headway.config.clash import Clash
from headway.core.errors import EnvironmentSetupError
from headway.core.schema import Key, keys_of
from headway.environments.arguments import read_arguments
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
    for problem in read_arguments(name, settings, args)[1]:
        keys = (f"{PREFIX}.{problem.key}", PREFIX, "environment.name")
        yield Clash(keys, problem.rule, problem.remedy)


def with_all_arguments(config: Config) -> Config:
    """Return the config with the defaults of arguments that were not given."""
    keys = argument_keys(config.environment.name)
    defaults = {name: _as_toml(key.default) for name, key in keys.items() if key.default is not None}
    environment = dataclasses.replace(config.environment, args=defaults | config.environment.args)
    return dataclasses.replace(config, environment=environment)


def _as_toml(value: Any) -> Any:
    """Return a default as TOML would give it, so that a config equals the one that is read back."""
    if isinstance(value, (list, tuple)):
        return [_as_toml(entry) for entry in typing.cast("list[Any]", value)]
    return value
