"""Settings that the user changed and that the other settings leave without effect: one warning each.

They are no errors: a file may hold what a later stage of the run, or another override, gives an effect. A key
that is written with its default's value says nothing that is not so anyway, so a printed config warns of
no more than the one that it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.config.arguments import argument_keys
from headway.config.compose import Config
from headway.config.show import toml_value
from headway.config.source import read_source
from headway.config.validate import in_file_order
from headway.core.hooks import is_own
from headway.core.schema import keys_of, sections_of
from headway.environments.registry import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headway.algorithms.settings import AlgorithmSettings
    from headway.config.source import Source


@dataclass(frozen=True, slots=True)
class Idle:
    """Keys of one section that act under a condition only."""

    keys: str  # the section, a dot, and the names with spaces between: "guard.window baseline"
    acts: Callable[[Config], bool]
    why: tuple[str, ...]  # full keys whose values are the reason when they do not act
    exception: str = ""  # when they act all the same

    @property
    def full_keys(self) -> tuple[str, ...]:
        """The keys with their section."""
        section, _, names = self.keys.partition(".")
        return tuple(f"{section}.{name}" for name in names.split())


def _reads(part: str, *names: str) -> Callable[[Config], bool]:
    """Return whether the chosen advantage, loss or correction is one of `names`.

    A user's own function gets all settings of the algorithm, so any of them may act.
    """
    return lambda c: getattr(c.algorithm, part) in names or _has_own(c.algorithm)


def _has_own(algorithm: AlgorithmSettings) -> bool:
    return any(map(is_own, (algorithm.advantage, algorithm.loss, algorithm.correction)))


def _clips(config: Config) -> bool:
    """With a correction the loss takes its ratio to the trainer's own policy at the step, which is 1."""
    return config.algorithm.correction == "none" or _has_own(config.algorithm)


def _parks(config: Config) -> bool:
    extra = config.oversampling
    return (
        config.partial.park != "never"
        or config.concurrency.mode == "adaptive"
        or (extra.when_met == "park" and bool(extra.rollouts_extra or extra.groups_extra))
    )


def _prunes(config: Config) -> bool:
    rule = config.pruning
    return bool(rule.max_tokens or rule.environment) or not (
        rule.max_repetition is None and rule.value_threshold is None
    )


def _may_wait(config: Config) -> bool:
    control = config.control
    return config.queue.batch_wait_s > 0 or (control.mode == "on" and "batch_wait" in control.levers)


TABLE = (
    Idle(
        "queue.batch_tokens",
        lambda c: c.queue.batch_tokens < c.queue.batch_size * c.generator.max_context_tokens,
        ("queue.batch_size", "generator.max_context_tokens"),
    ),
    Idle(
        "generator.kv_on_update prefill_chunk_tokens",
        lambda c: c.generator.numerics == "fast",
        ("generator.numerics",),
    ),
    Idle(
        "trainer.micro_batch_tokens replay_routing",
        lambda c: c.generator.numerics == "fast",
        ("generator.numerics",),
    ),
    Idle("reward.group_timeout_s", lambda c: bool(c.reward.group), ("reward.group",)),
    Idle(
        "judge.model key_env each weight system prompt pair_prompt low high form pattern response_format "
        "per_turn temperature max_tokens extra request_timeout_s max_tries backoff_s max_retry_after_s "
        "max_concurrent requests_per_min cache cache_dir",
        lambda c: c.judge.is_on,
        ("judge.url",),
    ),
    Idle("judge.pair_prompt", lambda c: c.reward.group == "pairwise", ("reward.group",)),
    Idle("judge.prompt per_turn", lambda c: c.judge.each, ("judge.each",)),
    Idle("judge.pattern", lambda c: c.judge.form == "pattern", ("judge.form",)),
    Idle("judge.response_format", lambda c: c.judge.form == "json", ("judge.form",)),
    Idle("judge.cache_dir cache_entries", lambda c: c.judge.cache, ("judge.cache",)),
    Idle(
        "shaping.free_tokens max_token_penalty",
        lambda c: c.shaping.token_penalty > 0,
        ("shaping.token_penalty",),
    ),
    Idle("queue.max_updating_replicas", lambda c: c.generator.replicas > 1, ("generator.replicas",)),
    Idle(
        "oversampling.when_met",
        lambda c: bool(c.oversampling.rollouts_extra or c.oversampling.groups_extra),
        ("oversampling.rollouts_extra", "oversampling.groups_extra"),
    ),
    Idle(
        "curriculum.band_low band_high explore memory_groups",
        lambda c: bool(c.curriculum.levels) or any(source.levels for source in c.source.values()),
        ("curriculum.levels",),
    ),
    Idle(
        "curriculum.retire_at return_after_steps",
        lambda c: c.curriculum.retire_after > 0,
        ("curriculum.retire_after",),
    ),
    Idle(
        "pruning.repetition_window",
        lambda c: c.pruning.max_repetition is not None,
        ("pruning.max_repetition",),
    ),
    Idle(
        "pruning.max_tokens",
        lambda c: c.pruning.max_tokens < c.generator.max_context_tokens,
        ("generator.max_context_tokens",),
    ),
    Idle("pruning.min_turns", lambda c: c.pruning.value_threshold is not None, ("pruning.value_threshold",)),
    Idle(
        "pruning.audit",
        _prunes,
        (
            "pruning.max_tokens",
            "pruning.max_repetition",
            "pruning.environment",
            "pruning.value_threshold",
        ),
    ),
    Idle(
        "concurrency.initial min_running max_running low high hard growth trim",
        lambda c: c.concurrency.mode != "fixed",
        ("concurrency.mode",),
    ),
    Idle(
        "control.levers wait_high wait_low calm_cycles min_gain max_waste max_groups_extra "
        "max_rollouts_extra min_running max_running kv_high preempted prune_quantile "
        "generator_machines trainer_machines",
        lambda c: c.control.mode != "off",
        ("control.mode",),
    ),
    Idle(
        "control.prune_quantile",
        lambda c: "pruning" in c.control.levers,
        ("control.levers",),
    ),
    Idle(
        "control.min_running max_running kv_high preempted",
        lambda c: "running" in c.control.levers,
        ("control.levers",),
    ),
    Idle(
        "control.min_running max_running kv_high preempted",
        lambda c: c.concurrency.mode == "fixed",
        ("concurrency.mode",),
    ),
    Idle("queue.batch_wait_share", _may_wait, ("queue.batch_wait_s",)),
    Idle(
        "guard.window baseline sigmas min_reward min_entropy max_entropy max_grad_norm max_mismatch_kl "
        "max_clip_fraction max_mask_fraction max_response_tokens",
        lambda c: c.guard.action != "off",
        ("guard.action",),
    ),
    Idle("guard.max_pause_s", lambda c: c.guard.action == "pause", ("guard.action",)),
    Idle("guard.rollback_lr_scale max_rollbacks", lambda c: c.guard.action == "rollback", ("guard.action",)),
    Idle(
        "staleness.down_weight_from",
        lambda c: c.staleness.down_weight_from < c.queue.bound,
        ("queue.bound",),
    ),
    Idle(
        "staleness.down_weight", lambda c: c.staleness.down_weight_from >= 0, ("staleness.down_weight_from",)
    ),
    Idle(
        "staleness.trajectory", lambda c: c.staleness.trajectory_bound >= 0, ("staleness.trajectory_bound",)
    ),
    Idle(
        "staleness.environment",
        lambda c: c.staleness.environment_bound >= 0,
        ("staleness.environment_bound",),
    ),
    Idle("partial.after_steps max_late_batches", lambda c: c.partial.park != "never", ("partial.park",)),
    Idle("partial.train", _parks, ("partial.park",), "except after a generator's death"),
    Idle(
        "algorithm.std_eps",
        _reads("advantage", "grpo", "magistral", "reinforce_pp", "reinforce_pp_baseline"),
        ("algorithm.advantage",),
    ),
    Idle(
        "algorithm.discount",
        _reads("advantage", "reinforce_pp", "reinforce_pp_baseline", "process"),
        ("algorithm.advantage",),
    ),
    Idle("algorithm.clip_low clip_high dual_clip", _reads("loss", "grpo"), ("algorithm.loss",)),
    Idle("algorithm.importance_cap", _reads("loss", "reinforce_is", "aipo"), ("algorithm.loss",)),
    Idle("algorithm.gspo_clip_low gspo_clip_high", _reads("loss", "gspo"), ("algorithm.loss",)),
    Idle("algorithm.cispo_min_weight cispo_max_weight", _reads("loss", "cispo"), ("algorithm.loss",)),
    Idle("algorithm.dppo_low dppo_high dppo_kl", _reads("loss", "dppo"), ("algorithm.loss",)),
    Idle("algorithm.m2po_threshold", _reads("loss", "m2po"), ("algorithm.loss",)),
    Idle(
        "algorithm.clip_low clip_high dual_clip gspo_clip_low gspo_clip_high dppo_low dppo_high dppo_kl "
        "m2po_threshold",
        _clips,
        ("algorithm.correction",),
    ),
    Idle(
        "algorithm.correction_level",
        lambda c: c.algorithm.correction != "none" or _has_own(c.algorithm),
        ("algorithm.correction",),
    ),
    Idle("algorithm.tis_cap", _reads("correction", "tis"), ("algorithm.correction",)),
    Idle("algorithm.mis_min mis_max", _reads("correction", "mis"), ("algorithm.correction",)),
    Idle("algorithm.icepop_min icepop_max", _reads("correction", "icepop"), ("algorithm.correction",)),
    Idle("algorithm.kl_estimator kl_importance", lambda c: c.algorithm.kl_coef > 0, ("algorithm.kl_coef",)),
    Idle(
        "algorithm.constant_tokens",
        lambda c: c.algorithm.normaliser == "constant",
        ("algorithm.normaliser",),
    ),
    Idle("trainer.decay_steps", lambda c: c.trainer.schedule == "linear", ("trainer.schedule",)),
    Idle("trainer.lora_rank lora_alpha lora_targets", lambda c: not c.trainer.full, ("trainer.full",)),
    Idle(
        "eval.num_tasks",
        lambda c: c.eval.at_start or c.eval.at_end or c.eval.every_steps > 0,
        ("eval.at_start", "eval.at_end", "eval.every_steps"),
    ),
    Idle(
        "eval.temperature rollouts_per_task max_share split",
        lambda c: c.eval.num_tasks > 0,
        ("eval.num_tasks",),
    ),
    Idle("checkpoint.keep_best", lambda c: c.eval.num_tasks > 0, ("eval.num_tasks",)),
    Idle("stop.target_window", lambda c: c.stop.target_reward != 0, ("stop.target_reward",)),
)
"""In the order of the sections; of several entries of a key the first that does not act tells why."""


def idle_settings(config: Config, path: Path | None, overrides: Sequence[str] = ()) -> list[str]:
    """Return a line for each setting that the user changed and that has no effect, in the file's order.

    Args:
        config: what `path` and `overrides` load to.
        path: the config file, None without one.
        overrides: such as `queue.bound=2`.
    """
    found = idle_keys(config, read_source(path, overrides))
    return [f"warning: {where}: {key} {text}" for where, key, text in found]


def idle_keys(config: Config, source: Source) -> list[tuple[str, str, str]]:
    """Return place, key and why it has no effect, in the file's order; `config` came from `source`."""
    told: dict[str, str] = {}
    for key, why in (*_idle(config), *_idle_levels(config)):
        if source.is_given(key):
            told.setdefault(key, why)
    lines = [(source.where(key), key, f"has no effect while {why}") for key, why in told.items()]
    return sorted(lines, key=lambda line: in_file_order(line[0]))


def _idle(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the changed keys of the table that do not act, with the reason."""
    for row in TABLE:
        if row.acts(config):
            continue
        why = " and ".join(_says(config, key) for key in row.why)
        why += f", {row.exception}" if row.exception else ""
        for key in row.full_keys:
            if _value(config, key) != _default(key):
                yield key, why


def _idle_levels(config: Config) -> Iterator[tuple[str, str]]:
    """Yield levels in a source's arguments that the curriculum overrules.

    A source gives train tasks only, and the curriculum says the level of each. Of a user's own environment
    nobody knows what else it does with its levels.
    """
    for name, source in config.source.items():
        key = f"source.{name}.levels" if source.levels else "curriculum.levels"
        chosen = source.levels or config.curriculum.levels
        own = source.args.get("levels")
        if not chosen or own is None or (source.environment or config.environment.name) not in BUILT_IN:
            continue
        inherited = config.environment.args.get("levels")
        if source.environment:
            inherited = list(argument_keys(source.environment)["levels"].default)
        if own != inherited and set(own) != set(chosen):
            yield f"source.{name}.args.levels", f"{key} is {toml_value(chosen)}"


def _says(config: Config, key: str) -> str:
    value = _value(config, key)
    return f"{key} is not set" if value is None else f"{key} is {toml_value(value)}"


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _default(key: str) -> Any:
    section, _, name = key.partition(".")
    return keys_of(sections_of(Config)[section])[name].default
