"""Rules between sections. Rules inside one section are that settings class's own `problems`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.config.arguments import environment_has_the_levels, environment_takes_its_arguments
from headway.config.clash import Clash
from headway.environments.registry import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway.config.compose import Config, SftConfig


LOWEST_TEMPERATURE = 0.001
NEED_WHOLE_BATCH = {
    "algorithm.advantage": ("magistral", "reinforce_pp", "reinforce_pp_baseline"),
    "algorithm.loss": ("m2po",),
}
"""Built-in functions with a batch half; the trainer finds it out of one's own when it starts."""
GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo", "maxrl", "magistral", "reinforce_pp_baseline")


def group_estimator_needs_a_group(config: Config) -> Iterator[Clash]:
    """One rollout has nothing to be compared with: its advantage is 0 and it never carries a signal."""
    if config.queue.group_size == 1 and config.algorithm.advantage in GROUP_ESTIMATORS:
        rule = (
            "group size 1 with a group estimator: must be at least 2 when algorithm.advantage is "
            f'"{config.algorithm.advantage}", which compares the rollouts of a group'
        )
        yield Clash(("queue.group_size", "algorithm.advantage"), rule, "Use queue.group_size = 8")
    if config.algorithm.advantage not in GROUP_ESTIMATORS:
        return
    rule = f'must be at least 2 when algorithm.advantage is "{config.algorithm.advantage}"'
    if 1 in config.queue.group_size_by_level.values():
        yield Clash(
            ("queue.group_size_by_level", "algorithm.advantage"), rule, "Use 8, or leave the level out"
        )
    for name, source in config.source.items():
        if source.group_size == 1:
            yield Clash((f"source.{name}.group_size", "algorithm.advantage"), rule, "Use 8, or 0")


def a_temperature_can_be_divided_by(config: Config) -> Iterator[Clash]:
    """Logits over a tiny temperature are not finite."""
    temperatures = {
        "generator.temperature": config.generator.temperature,
        "eval.temperature": config.eval.temperature,
    }
    for key, temperature in temperatures.items():
        if 0 < temperature < LOWEST_TEMPERATURE:
            yield Clash(
                (key,), f"must be 0, or at least {LOWEST_TEMPERATURE}", "Use 0 for the likeliest token"
            )


def leftovers_stay_within_the_bound(config: Config) -> Iterator[Clash]:
    """Extra groups that are kept for a later batch are older there by the batches they make."""
    rule, queue = config.oversampling, config.queue
    if not rule.groups_extra or rule.when_met == "cancel" or queue.batch_size < queue.group_size:
        return
    batches = -(-rule.groups_extra // queue.batch_groups)
    if queue.max_depth + batches > queue.bound:
        text = (
            f"must leave room for extra groups that are kept for a later batch: depth {queue.max_depth} and "
            f"{batches} more batches ({rule.groups_extra} groups) exceed queue.bound {queue.bound}"
        )
        room, bound = queue.bound - batches, queue.max_depth + batches
        if queue.depth >= 0:
            remedy = f"Use queue.bound = {bound}"
        elif room >= queue.publish_every - 1:  # as long as queue.depth is -1 it rises with queue.bound
            remedy = f"Use queue.depth = {room}"
        else:
            remedy = f"Use queue.depth = {queue.max_depth} and queue.bound = {bound}"
        remedy += ', or oversampling.when_met = "cancel"'
        keys = ("oversampling.groups_extra", "oversampling.when_met", "queue.depth", "queue.bound")
        yield Clash(keys, text, remedy)


def sources_have_a_weight(config: Config) -> Iterator[Clash]:
    """Somebody must be asked for tasks."""
    if config.source and not any(source.weight for source in config.source.values()):
        name = next(iter(config.source))
        yield Clash((f"source.{name}.weight",), "at least one source must have a weight above 0", "Use 1.0")


def levels_are_listed_once(config: Config) -> Iterator[Clash]:
    """A level is one of the curriculum's choices, with one solve rate."""
    for name, source in config.source.items():
        if source.levels and len(set(source.levels)) != len(source.levels):
            yield Clash((f"source.{name}.levels",), "a level may be listed once", "Remove the repetition")


def rewards_of_turns_exist(config: Config) -> Iterator[Clash]:
    """The built-in environments score a rollout as a whole; of one's own it shows at the first group."""
    judged = config.judge.is_on and config.judge.each and config.judge.per_turn
    if config.algorithm.advantage != "process" or judged:
        return
    asked = {f"source.{name}.environment": source for name, source in config.source.items() if source.weight}
    names = {key: source.environment or config.environment.name for key, source in asked.items()}
    for key, name in (names or {"environment.name": config.environment.name}).items():
        if name in BUILT_IN:
            rule = f'cannot be "process" with the environment {name}, whose rewards say nothing of turns'
            remedy = 'Use "grpo", judge.per_turn = true, or an environment of your own'
            yield Clash(("algorithm.advantage", key), rule, remedy)
            return


def rewards_of_groups_are_read(config: Config) -> Iterator[Clash]:
    """What makes rewards of a whole group needs its parts, and an advantage that looks at them."""
    if config.reward.group == "pairwise" and not config.judge.is_on:
        rule = 'needs a judge when reward.group is "pairwise"'
        yield Clash(("judge.url", "reward.group"), rule, "As in http://127.0.0.1:8000/v1")
    if config.reward.group and config.algorithm.advantage == "process":
        rule = 'must be empty when algorithm.advantage is "process", which reads the rewards of turns alone'
        yield Clash(("reward.group", "algorithm.advantage"), rule, 'Use "grpo"')


def maxrl_needs_rewards_above_0(config: Config) -> Iterator[Clash]:
    """It divides by their mean."""
    if config.algorithm.advantage != "maxrl":
        return
    for name in ("format_penalty", "truncated_penalty", "token_penalty"):
        if getattr(config.shaping, name) > 0:
            rule = 'must be 0 when algorithm.advantage is "maxrl", which divides by the mean of the rewards'
            yield Clash((f"shaping.{name}", "algorithm.advantage"), rule, "Use shaping.format_bonus")
            return


def batch_estimator_keeps_every_group(config: Config) -> Iterator[Clash]:
    """Where rewards are compared over the batch, a group of zeros has a signal once the batch is known."""
    if config.algorithm.advantage == "reinforce_pp" and config.queue.drop_zero_advantage:
        rule = 'must be false when algorithm.advantage is "reinforce_pp", which compares over the batch'
        remedy = 'Set it to false, or use "reinforce_pp_baseline"'
        yield Clash(("queue.drop_zero_advantage", "algorithm.advantage"), rule, remedy)


def a_streamed_step_needs_no_whole_batch(config: Config) -> Iterator[Clash]:
    """What is computed over the batch is known when it is complete, and a streamed step has begun by then."""
    if not config.queue.stream:
        return
    chosen = {
        "algorithm.advantage": config.algorithm.advantage,
        "algorithm.loss": config.algorithm.loss,
    }
    for key, name in chosen.items():
        if name in NEED_WHOLE_BATCH[key]:
            rule = f'must be false when {key} is "{name}", which needs the whole batch before any gradient'
            yield Clash(("queue.stream", key), rule, "Set it to false: the trainer then waits for the batch")


def kl_penalty_needs_a_reference(config: Config) -> Iterator[Clash]:
    """Full fine-tuning overwrites the model that the run began from."""
    if config.algorithm.kl_coef > 0 and config.trainer.full:
        rule = "must be 0 when trainer.full is true: the reference is the base model under LoRA factors"
        yield Clash(("algorithm.kl_coef", "trainer.full"), rule, "Use trainer.full = false, or kl_coef = 0")


def periodic_evaluation_needs_tasks(config: Config) -> Iterator[Clash]:
    """An evaluation without tasks has no result."""
    if config.eval.every_steps > 0 and config.eval.num_tasks == 0:
        rule = f"must be at least 1 when eval.every_steps is {config.eval.every_steps}"
        yield Clash(("eval.num_tasks", "eval.every_steps"), rule, "Use 64, or eval.every_steps = 0")


def training_explores(config: Config) -> Iterator[Clash]:
    """Greedy rollouts of one task are all the same, so that no group has a signal."""
    if config.generator.temperature == 0:
        rule = "must be above 0: greedy rollouts of a group are all alike and carry no signal"
        yield Clash(("generator.temperature",), rule, "Use 1.0; eval.temperature sets evaluation's own")


def rollouts_may_start_on_the_newest_version(config: Config) -> Iterator[Clash]:
    """Between two versions a rollout starts on weights that are publish_every - 1 steps old at most."""
    bound, every = config.staleness.trajectory_bound, config.queue.publish_every
    if 0 <= bound < every - 1:
        rule = f"must be at least {every - 1} when queue.publish_every is {every}: nothing could start"
        keys = ("staleness.trajectory_bound", "queue.publish_every")
        yield Clash(keys, rule, f"Use {every - 1} or more")


def a_group_can_be_kept(config: Config) -> Iterator[Clash]:
    """Of n rollouts 0, 1, ... or n are solved, and one of these shares must be in the band."""
    low, high = config.acceptance.band_low, config.acceptance.band_high
    size = config.queue.group_size
    if low > high or any(low <= solved / size <= high for solved in range(size + 1)):
        return
    rule = (
        f"no group of {size} can have a solved share from {low:g} to {high:g}: every group would be dropped"
    )
    keys = ("acceptance.band_low", "acceptance.band_high", "queue.group_size")
    yield Clash(keys, rule, "Widen the band, or use larger groups")


def supervised_training_has_one_process(config: SftConfig) -> Iterator[Clash]:
    """`headway sft` trains in its own process."""
    if config.trainer.ranks > 1:
        yield Clash(("trainer.ranks",), "must be 1 for `headway sft`, which has one process", "Use 1")


SFT_RULES: tuple[Callable[[SftConfig], Iterator[Clash]], ...] = (supervised_training_has_one_process,)
RULES: tuple[Callable[[Config], Iterator[Clash]], ...] = (
    a_temperature_can_be_divided_by,
    environment_takes_its_arguments,
    environment_has_the_levels,
    rewards_of_turns_exist,
    rewards_of_groups_are_read,
    maxrl_needs_rewards_above_0,
    training_explores,
    group_estimator_needs_a_group,
    batch_estimator_keeps_every_group,
    a_streamed_step_needs_no_whole_batch,
    kl_penalty_needs_a_reference,
    periodic_evaluation_needs_tasks,
    leftovers_stay_within_the_bound,
    sources_have_a_weight,
    levels_are_listed_once,
    rollouts_may_start_on_the_newest_version,
    a_group_can_be_kept,
)
