"""Loads the configuration of a run from a file, from the command line, or from both."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.config.arguments import with_all_arguments
from headway.config.compose import EXAMPLES, Config
from headway.config.rules import RULES
from headway.config.source import COMMAND_LINE, read_source
from headway.config.validate import validate
from headway.core.errors import UserError
from headway.core.hooks import absolute

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from headway.config.source import Source

HOOKS = (
    ("environment", "name"),
    ("algorithm", "advantage"),
    ("algorithm", "loss"),
    ("acceptance", "verdict"),
    ("pruning", "value_hook"),
)
"""Keys that may name a file of the user's own code."""


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides in order, and check everything.

    The environment's arguments are completed with their defaults, and files of the user's own code get
    absolute paths, so that the config says all that a run depends on and a copy of it means the same.
    A relative path in the file is relative to the file's folder, one in an override to the current directory.

    Args:
        path: the file; None takes all values from the overrides.
        overrides: such as `queue.bound=2`.

    Raises:
        ConfigError: with every problem found, each with key, place, value, rule and remedy.
        UserError: when the file cannot be read or is no TOML.
    """
    source = read_source(path, overrides)
    _fix_hooks(source, Path() if path is None else path.parent)
    config = validate(Config, source, examples=EXAMPLES, rules=RULES)
    return with_all_arguments(config)


@contextmanager
def placing(path: Path | None, overrides: Sequence[str] = ()) -> Generator[None]:
    """Add the place of its key to a UserError raised inside: what is found out only when a value is used."""
    try:
        yield
    except UserError as error:
        if error.key and not error.where:
            error.where = read_source(path, overrides).where(error.key)
        raise


def _fix_hooks(source: Source, folder: Path) -> None:
    """Make the paths of hooks absolute; what is no string is left for the validation to refuse."""
    for section, name in HOOKS:
        _fix_hook(source, source.values.get(section), section, name, folder)
    sources = source.values.get("source")
    for name, table in cast("dict[str, Any]", sources).items() if isinstance(sources, dict) else ():
        _fix_hook(source, table, f"source.{name}", "environment", folder)


def _fix_hook(source: Source, table: object, section: str, name: str, folder: Path) -> None:
    if not isinstance(table, dict):
        return
    values = cast("dict[str, Any]", table)
    if isinstance(value := values.get(name), str) and value:
        is_override = source.where(f"{section}.{name}") == COMMAND_LINE
        values[name] = absolute(value, Path() if is_override else folder)
