"""The environment's own arguments, `[environment.args]`, checked like every other key."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.config.clash import Clash
from headway.core.check import Mismatch, convert, describe_bounds
from headway.core.errors import EnvironmentSetupError
from headway.core.hooks import absolute, is_own
from headway.core.schema import Key, keys_of
from headway.environments.arguments import read_arguments
from headway.environments.registry import BUILT_IN, settings_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway.config.compose import Config
    from headway.core.settings import Rule

PREFIX = "environment.args"


def argument_keys(name: str) -> dict[str, Key]:
    """Return the arguments of an environment.

    Raises EnvironmentSetupError when there is no such environment.
    """
    return keys_of(settings_type(name))


def environment_takes_its_arguments(config: Config) -> Iterator[Clash]:
    """An environment must exist and accept its arguments."""
    yield from _takes("environment.name", config.environment.name, PREFIX, config.environment.args)
    for name, source in config.source.items():
        key = f"source.{name}"
        if source.environment:
            yield from _takes(f"{key}.environment", source.environment, f"{key}.args", source.args)
        else:  # the faults of environment.args are told once
            own = read_own(config.environment.name, config.environment.args)
            yield from _takes("environment.name", config.environment.name, f"{key}.args", own | source.args)


def environment_has_the_levels(config: Config) -> Iterator[Clash]:
    """The curriculum may ask a built-in environment for its own levels only.

    One's own environment is asked for each level before the run begins.
    """
    wanted = {"curriculum.levels": {config.environment.name: config.curriculum.levels}}
    if config.source:
        wanted["curriculum.levels"] = {}
    for name, source in config.source.items():
        key = f"source.{name}.levels" if source.levels else "curriculum.levels"
        environment = source.environment or config.environment.name
        wanted.setdefault(key, {})[environment] = source.levels or config.curriculum.levels
    for key, by_environment in wanted.items():
        for environment, levels in by_environment.items():
            if environment not in BUILT_IN or (known := argument_keys(environment).get("levels")) is None:
                continue
            try:
                convert(list(levels), known.hint, known.rule)
            except Mismatch:
                bounds = describe_bounds(known.rule)
                yield Clash(
                    (key,),
                    f"levels of the environment {environment} must be {bounds}",
                    "Leave out the others",
                )


def read_own(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments that the environment accepts."""
    try:
        settings = settings_type(name)
    except EnvironmentSetupError:
        return dict(args)
    refused = {problem.key for problem in read_arguments(name, settings, args)[1]}
    return {key: value for key, value in args.items() if key not in refused}


def _takes(name_key: str, name: str, prefix: str, args: Mapping[str, Any]) -> Iterator[Clash]:
    try:
        settings = settings_type(name)
    except EnvironmentSetupError as error:
        if prefix == PREFIX or name_key != "environment.name":  # told once
            yield Clash((name_key,), error.rule, error.remedy)
        return
    for problem in read_arguments(name, settings, args)[1]:
        keys = (f"{prefix}.{problem.key}", prefix, name_key)
        yield Clash(keys, problem.rule, problem.remedy)


def environments_of(config: Config) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield each environment of a run: the key of its arguments, its name, and its arguments."""
    own = config.environment
    yield PREFIX, own.name, own.args
    for name, source in config.source.items():
        args = source.args if source.environment else own.args | source.args
        yield f"source.{name}.args", source.environment or own.name, args


def absolute_argument(value: str, rule: Rule, folder: Path) -> str:
    """Return the value of an argument that names a file or a hook, with an absolute path.

    Of "either" what is there as a file is one; else a name of code stays a name of code.
    """
    if rule.names == "hook" or (rule.names == "either" and is_own(value) and not (folder / value).exists()):
        return absolute(value, folder)
    return value if value.startswith("hf:") else str((folder / Path(value).expanduser()).absolute())


def with_all_arguments(config: Config, folder: Path) -> Config:
    """Return the config with the defaults of arguments that were not given.

    One that names a file is relative to `folder`, the config file's.
    """
    name, args = config.environment.name, config.environment.args
    environment = dataclasses.replace(config.environment, args=_defaults(name, folder) | args)
    sources = {
        key: dataclasses.replace(
            source,
            args=_defaults(source.environment, folder) | source.args
            if source.environment
            else environment.args | source.args,
        )
        for key, source in config.source.items()
    }
    return dataclasses.replace(config, environment=environment, source=sources)


def _defaults(name: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in argument_keys(name).values():
        value = _as_toml(key.default)
        if key.rule.names and value and isinstance(value, str):
            value = absolute_argument(value, key.rule, folder)
        if value is not None:
            found[key.name] = value
    return found


def _as_toml(value: Any) -> Any:
    """Return a default as TOML would give it, so that a config equals the one that is read back."""
    if isinstance(value, (list, tuple)):
        return [_as_toml(entry) for entry in typing.cast("list[Any]", value)]
    return value
