"""Loads the configuration of a run from a file, from the command line, or from both."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from headway.config.compose import EXAMPLES, Config
from headway.config.rules import RULES
from headway.config.source import read_source
from headway.config.validate import validate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides in order, and check everything.

    An empty `run.name` becomes the file's name without its ending, so that the config is complete.

    Args:
        path: the file; None takes all values from the overrides.
        overrides: such as `queue.bound=2`.

    Raises:
        ConfigError: with every problem found, each with key, place, value, rule and remedy.
        UserError: when the file cannot be read or is no TOML.
    """
    config = validate(Config, read_source(path, overrides), examples=EXAMPLES, rules=RULES)
    if config.run.name:
        return config
    stem = "run" if path is None else path.stem
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", stem).lstrip(".-") or "run"
    return dataclasses.replace(config, run=dataclasses.replace(config.run, name=name))
