"""Loads the configuration of a run from a file, from the command line, or from both."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from headway.config.arguments import with_all_arguments
from headway.config.compose import EXAMPLES, Config
from headway.config.rules import RULES
from headway.config.source import read_source
from headway.config.validate import validate
from headway.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides in order, and check everything.

    The environment's arguments are completed with their defaults, so that the config says all that a run
    depends on.

    Args:
        path: the file; None takes all values from the overrides.
        overrides: such as `queue.bound=2`.

    Raises:
        ConfigError: with every problem found, each with key, place, value, rule and remedy.
        UserError: when the file cannot be read or is no TOML.
    """
    config = validate(Config, read_source(path, overrides), examples=EXAMPLES, rules=RULES)
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
