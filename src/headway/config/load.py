"""Loads the configuration of a run from a file, from the command line, or from both."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.config.arguments import absolute_argument, with_all_arguments
from headway.config.compose import EXAMPLES, Config, SftConfig
from headway.config.rules import RULES, SFT_RULES
from headway.config.source import COMMAND_LINE, read_source
from headway.config.validate import validate
from headway.core.errors import ConfigError, EnvironmentSetupError, UserError
from headway.core.hooks import absolute
from headway.core.schema import keys_of, sections_of
from headway.environments.registry import settings_type

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from headway.config.source import Source

PLAN_SECTIONS = ("hardware", "workload", "fleet", "timings", "cost")
"""What `headway plan` reads beside a run's config: one file can serve both."""
HOOKS = (
    ("environment", "name"),
    ("algorithm", "advantage"),
    ("algorithm", "loss"),
    ("algorithm", "correction"),
    ("acceptance", "verdict"),
    ("pruning", "value_hook"),
    ("reward", "group"),
)
"""Keys that may name a file of the user's own code."""


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides in order, and check everything.

    The environment's arguments are completed with their defaults, and files of the user's own code get
    absolute paths, so that the config says all that a run depends on and a copy of it means the same.
    A relative path in the file is relative to the file's folder, one in an override to the current directory.
    Arguments of an environment that an override replaces are left out, which a line on stderr says.

    Args:
        path: the file; None takes all values from the overrides.
        overrides: such as `queue.bound=2`.

    Raises:
        ConfigError: with every problem found, each with key, place, value, rule and remedy.
        UserError: when the file cannot be read or is no TOML.
    """
    source = read_source(path, overrides)
    if source.left_out:
        print(f"note: {source.left_out}", file=sys.stderr, flush=True)
    _set_aside(source, sections_of(SftConfig).keys() - sections_of(Config).keys(), "headway sft")
    _set_aside(source, PLAN_SECTIONS, "headway plan")
    folder = Path() if path is None else path.parent
    fix_hooks(source, folder)
    _fix_model(source, folder)
    _fix_folder(source, folder, "sandbox", "directory")
    _fix_folder(source, folder, "sandbox", "image")
    _fix_folder(source, folder, "judge", "cache_dir")
    config = validate(Config, source, examples=EXAMPLES, rules=RULES)
    return with_all_arguments(config, folder)


def load_sft_config(path: Path | None, overrides: Sequence[str] = ()) -> SftConfig:
    """Read what `headway sft` needs of a TOML file and `key=value` overrides, and check it.

    Sections of `headway train` alone are not looked at. Paths of data become absolute, as those of hooks do
    in `load_config`.

    Raises:
        ConfigError: with every problem found.
        UserError: when the file cannot be read or is no TOML.
    """
    source = read_source(path, overrides)
    _set_aside(source, sections_of(Config).keys() - sections_of(SftConfig).keys(), "headway train")
    _set_aside(source, PLAN_SECTIONS, "headway plan")
    _fix_model(source, Path() if path is None else path.parent)
    table = source.values.get("sft")
    for name in ("data", "eval_data") if isinstance(table, dict) else ():
        values = cast("dict[str, Any]", table)
        if isinstance(value := values.get(name), str) and value:
            is_override = source.where(f"sft.{name}") == COMMAND_LINE
            folder = Path() if is_override or path is None else path.parent
            values[name] = str((folder / Path(value).expanduser()).absolute())
    return validate(SftConfig, source, examples=EXAMPLES, rules=SFT_RULES)


def sections_not_read(path: Path) -> list[str]:
    """Return the sections of a file that `headway sft` does not look at."""
    given = read_source(path, ()).values
    return [name for name in sections_of(Config) if name in given and name not in sections_of(SftConfig)]


def _set_aside(source: Source, sections: Iterable[str], command: str) -> None:
    """Take the sections that only another command reads out of the source.

    Raises ConfigError for an override of one of them: it would have no effect.
    """
    problems: list[UserError] = []
    for name in sections:
        source.values.pop(name, None)
        for place in [place for place in source.places if place[0] == name]:
            if source.places[place] == COMMAND_LINE and len(place) > 1:
                rule = f"is a setting of {command}, and has no effect here"
                at_home = _AT_HOME.get(".".join(place))
                remedy = f"headway sft has {at_home}" if at_home else "Leave it out"
                problems.append(UserError(rule, key=".".join(place), remedy=remedy, where=COMMAND_LINE))
            del source.places[place]
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.key))


_AT_HOME = {
    "stop.steps": "sft.steps",
    "eval.every_steps": "sft.eval_every_steps",
    "queue.batch_size": "sft.batch_size",
}
"""What `headway sft` has in the place of a setting of headway train."""


@contextmanager
def placing(path: Path | None, overrides: Sequence[str] = ()) -> Generator[None]:
    """Add the place of its key to a UserError raised inside: what is found out only when a value is used."""
    try:
        yield
    except UserError as error:
        if error.key and not error.where:
            error.where = read_source(path, overrides).where(error.key)
        raise


def fix_hooks(source: Source, folder: Path) -> None:
    """Make the paths of hooks absolute; what is no string is left for the validation to refuse."""
    for section, name in HOOKS:
        _fix_hook(source, source.values.get(section), section, name, folder)
    sources = source.values.get("source")
    for name, table in cast("dict[str, Any]", sources).items() if isinstance(sources, dict) else ():
        _fix_hook(source, table, f"source.{name}", "environment", folder)
    _fix_arguments(source, folder)


def _fix_arguments(source: Source, folder: Path) -> None:
    """Make the paths absolute that environments take as arguments, by what their settings say of each."""
    own = _table(source.values, "environment")
    places = [("environment", own, own.get("name"))]
    for name, table in _table(source.values, "source").items():
        if isinstance(table, dict):
            one = cast("dict[str, Any]", table)
            places.append((f"source.{name}", one, one.get("environment") or own.get("name")))
    for prefix, table, environment in places:
        arguments = _table(table, "args")
        if not (arguments and isinstance(environment, str)):
            continue
        try:
            keys = keys_of(settings_type(environment))
        except EnvironmentSetupError:  # told when the config is validated
            continue
        for name, key in keys.items():
            value = arguments.get(name)
            if not key.rule.names or not isinstance(value, str) or not value:
                continue
            base = Path() if source.where(f"{prefix}.args.{name}") == COMMAND_LINE else folder
            arguments[name] = absolute_argument(value, key.rule, base)


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the table of a name, an empty one where there is none; what else is there is refused later."""
    found: object = values.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _fix_model(source: Source, folder: Path) -> None:
    """Make the path of a model absolute that lies in the config file's folder; other words may be names."""
    table = _table(source.values, "model")
    value = table.get("path")
    if not isinstance(value, str) or source.where("model.path") == COMMAND_LINE:
        return
    path = folder / value
    if ("/" in value and path.is_dir()) or (path.suffix == ".gguf" and path.is_file()):
        table["path"] = str(path.absolute())


def _fix_folder(source: Source, folder: Path, section: str, name: str) -> None:
    """Make the path of a folder absolute: whoever uses it, or ends what is left there, runs elsewhere."""
    table: object = source.values.get(section)
    if isinstance(table, dict):
        values = cast("dict[str, Any]", table)
        if isinstance(value := values.get(name), str) and value:
            is_override = source.where(f"{section}.{name}") == COMMAND_LINE
            values[name] = str((Path() if is_override else folder).absolute() / Path(value).expanduser())


def _fix_hook(source: Source, table: object, section: str, name: str, folder: Path) -> None:
    if not isinstance(table, dict):
        return
    values = cast("dict[str, Any]", table)
    if isinstance(value := values.get(name), str) and value:
        is_override = source.where(f"{section}.{name}") == COMMAND_LINE
        values[name] = absolute(value, Path() if is_override else folder)
