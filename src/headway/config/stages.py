"""Settings between the stages of a run: which may change at a resume, and what a run's settings are by now.

A change is journalled; the run's config.toml stays as the run began. A setting may change unless something
that already exists rests on its value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from headway.config.compose import Config, SftConfig
from headway.config.idle import idle_settings
from headway.config.load import load_config, load_sft_config
from headway.config.show import toml_value
from headway.config.source import COMMAND_LINE, parse_override
from headway.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

C = TypeVar("C", Config, SftConfig)
Change = tuple[str, Any]
"""A full config key and its new value, None for unset."""

FIXED = {
    "run.name": "the run's directory has this name",
    "run.dir": "the run's directory is there",
    "run.seed": "the order of the tasks and the draws of all rollouts so far come from it",
    "run.usd_per_hour": "the journal's header has the price that the whole run is reported by",
    "model": "the checkpoints are of this model",
    "source": "the mix so far, and rollouts that are queued, are of these sources",
    "eval.only": "the run is a training or an evaluation",
    "environment.name": "rollouts that are queued or were in flight are of this environment",
    "environment.args": "rollouts that are queued or were in flight are of this environment's tasks",
    "generator.replicas": "groups in flight were given to replicas by name",
    "trainer.full": "the checkpoints hold weights of this form",
    "trainer.lora_rank": "the checkpoints hold factors of this rank",
    "trainer.lora_alpha": "the factors in the checkpoints were trained at this scale",
    "trainer.lora_targets": "the checkpoints hold factors of these layers",
    "sandbox.directory": "what a killed life leaves behind is looked for there",
    "telemetry.solved_reward": "the journal's header has it, for the report of the whole run",
    "telemetry.peak_flops_per_s": "the journal's header has it, for the report of the whole run",
}
"""Sections and keys that no stage may change, and what rests on each."""

_ORDER = "the order of the data so far comes from it"
SFT_FIXED = {
    **{key: reason for key, reason in FIXED.items() if key.partition(".")[0] in ("model", "trainer")},
    "run.name": FIXED["run.name"],
    "run.dir": FIXED["run.dir"],
    "run.seed": _ORDER,
    "sft.data": "the run's tokens were made from it",
    "sft.eval_data": "the run's tokens were made from it",
    "sft.train_on": "the run's tokens were made so",
    "sft.max_tokens": "the run's tokens were made so",
    "sft.too_long": "the run's tokens were made so",
    "sft.batch_size": _ORDER,
    "sft.batch_tokens": _ORDER,
    "sft.shuffle": _ORDER,
}
"""The same for `headway sft`."""


def at_this_stage(path: Path, earlier: Sequence[Change], more: Sequence[str] = ()) -> Config:
    """Return a run's settings after the changes of its earlier resumes.

    Args:
        path: the run's config.toml.
        earlier: in the order of the journal.
        more: `key=value` overrides on top.
    """
    return load_config(path, [*(_override(key, value) for key, value in earlier), *more])


def change(path: Path, earlier: Sequence[Change], overrides: Sequence[str]) -> tuple[Config, list[Change]]:
    """Return a run's settings with `key=value` overrides on top, and what they change.

    Raises ConfigError with every problem: a key that may not change, and whatever `load_config` refuses.
    """
    return _change(path, earlier, overrides, load_config, FIXED)


def change_sft(
    path: Path, earlier: Sequence[Change], overrides: Sequence[str]
) -> tuple[SftConfig, list[Change]]:
    """Do for a supervised run what `change` does for others."""
    return _change(path, earlier, overrides, load_sft_config, SFT_FIXED)


def _change(
    path: Path,
    earlier: Sequence[Change],
    overrides: Sequence[str],
    load: Callable[[Path, Sequence[str]], C],
    fixed: Mapping[str, str],
) -> tuple[C, list[Change]]:
    """Return a run's settings with `key=value` overrides on top, and what they change.

    Raises ConfigError with every problem: a key that may not change, and whatever `load_config` refuses.
    """
    keys: list[str] = []
    kept: list[str] = []
    problems: list[UserError] = []
    for override in overrides:
        try:
            parts, value = parse_override(override)
        except UserError as error:
            problems.append(error)
            continue
        key = ".".join(parts)
        reason = next((fixed[name] for name in (key, *_parents(parts)) if name in fixed), None)
        if reason is None:
            keys.append(".".join(parts[:2]))  # a part of a table changes the table
            kept.append(override)
            continue
        rule = f"may not change after the run began: {reason}"
        remedy = "Leave it out, or begin a new run with it"
        problems.append(UserError(rule, value=value, key=key, remedy=remedy, where=COMMAND_LINE))
    before = load(path, [_override(*item) for item in earlier])
    try:
        after = load(path, [*(_override(*item) for item in earlier), *kept])
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    changes = [(key, value_of(after, key)) for key in dict.fromkeys(keys)]
    return after, [(key, value) for key, value in changes if value != value_of(before, key)]


def idle_at_this_stage(
    config: Config, path: Path, earlier: Sequence[Change], overrides: Sequence[str]
) -> list[str]:
    """Return a line for each setting of `change`'s outcome that has no effect."""
    return idle_settings(config, path, [*(_override(*item) for item in earlier), *overrides])


def value_of(config: Config | SftConfig, key: str) -> Any:
    """Return the value of a full key."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def in_words(config: Config | SftConfig, key: str) -> str:
    """Return the value of a full key as a person reads it: with what it stands for, where it only points."""
    value = value_of(config, key)
    if key == "queue.depth" and value == -1 and isinstance(config, Config):
        return f"-1, the bound: {config.queue.bound}"
    return repr(value)


def _parents(parts: Sequence[str]) -> list[str]:
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def _override(key: str, value: Any) -> str:
    return f"{key}=" if value is None else f"{key}={toml_value(value)}"
