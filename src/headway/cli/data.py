"""Training on a file without a config: the options that stand for one, for train, check and env try."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from headway.cli import complete
from headway.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

_MEANINGS = {
    "model": "model.path",
    "data": "environment.args.data",
    "eval_data": "environment.args.eval_data",
    "reward": "environment.args.reward",
}


class Asked(NamedTuple):
    """What is to be loaded."""

    config: Path | None
    overrides: tuple[str, ...]
    name: str  # of the run where neither a file nor an override names it, "" where there is a file


def config_or_data(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command an optional CONFIG, KEY=VALUE, and the options that take a config's place."""
    for decorate in (
        data_options,
        model_option,
        click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete.overrides),
        click.argument("config", required=False, type=click.Path(path_type=Path)),
    ):
        command = decorate(command)
    return command


def data_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --data, --eval-data and --reward."""
    for decorate in (
        click.option(
            "--reward",
            metavar="NAME",
            help="What judges an answer: a verifier's name (docs/data.md), or file.py:function.",
        ),
        click.option("--eval-data", metavar="FILE", help="Held-out rows; a tenth of --data if not given."),
        click.option(
            "--data",
            metavar="FILE",
            help="Rows to train on, as a config's environment: JSONL, Parquet, a folder, or hf:OWNER/NAME.",
        ),
    ):
        command = decorate(command)
    return command


model_option = click.option("--model", metavar="MODEL", help="The model; a value for model.path.")


def asked_for(
    config: Path | None,
    overrides: tuple[str, ...],
    *,
    model: str | None = None,
    data: str | None = None,
    eval_data: str | None = None,
    reward: str | None = None,
) -> Asked:
    """Return the file and the overrides that arguments and options mean.

    Raises UserError where there is neither a config nor data.
    """
    options = {"model": model, "data": data, "eval_data": eval_data, "reward": reward}
    given = [f"{_MEANINGS[name]}={json.dumps(value)}" for name, value in options.items() if value is not None]
    if config is not None and "=" in str(config) and not config.exists():
        config, overrides = None, (str(config), *overrides)
    if any(value is not None for value in (data, eval_data, reward)):
        given.insert(0, 'environment.name="dataset"')
    if config is None and data is None and not any(key.startswith("environment.name=") for key in overrides):
        raise UserError(
            "there must be a config file, or data to train on",
            remedy="Give CONFIG, such as examples/tiny.toml, or --model MODEL --data FILE --reward NAME",
        )
    name = "" if config is not None else _run_name(data)
    return Asked(config, (*given, *overrides), name)


def _run_name(data: str | None) -> str:
    stem = Path(data or "run").stem.split(":")[-1]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", stem)
    return name.lstrip(".-")[:90] or "run"
