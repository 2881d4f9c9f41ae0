"""Settings that may be used together and hardly ever should: what they do to a run, and what to do instead.

Rules that must hold are in rules.py; settings without any effect in idle.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.config.clash import Clash
from headway.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway.config.compose import Config


def doubtful_settings(config: Config) -> list[Clash]:
    """Return one entry for each doubt, in the order of the table."""
    return [clash for doubt in DOUBTS for clash in doubt(config)]


def the_learning_rate_lasts(config: Config) -> Iterator[Clash]:
    """A schedule is made for the steps that there are."""
    trainer, steps = config.trainer, config.stop.steps
    if not steps:
        return
    if trainer.schedule == "linear" and trainer.decay_steps < steps:
        rule = (
            f"the learning rate is 0 from step {trainer.decay_steps} on, and the run goes on to step {steps}"
        )
        remedy = f"Use trainer.decay_steps = {steps}"
        yield Clash(("trainer.decay_steps", "trainer.schedule", "stop.steps"), rule, remedy)
    if trainer.warmup_steps >= steps:
        rule = f"the learning rate never reaches its peak: the warm-up takes all {steps} steps"
        yield Clash(("trainer.warmup_steps", "stop.steps"), rule, f"Use less than {steps}")


def all_weights_learn_slower_than_lora(config: Config) -> Iterator[Clash]:
    """The default of the learning rate is LoRA's."""
    if clash := high_rate(config.trainer):
        yield clash


def high_rate(trainer: TrainerSettings) -> Clash | None:
    """Return the doubt of training every weight with the learning rate that suits LoRA factors."""
    default = TrainerSettings().learning_rate
    if not trainer.full or trainer.learning_rate != default:
        return None
    rule = (
        f"every weight is trained (trainer.full) with {default:.0e}, the default, which suits LoRA factors "
    )
    rule += "and ruins most models so"
    remedy = "Use trainer.learning_rate = 1e-5, or another one that you tried"
    return Clash(("trainer.learning_rate", "trainer.full"), rule, remedy)


def what_is_parked_is_young_enough(config: Config) -> Iterator[Clash]:
    """A parked rollout goes on with newer weights, so its first tokens are a step old at least."""
    rule, bound = config.partial, config.queue.bound
    if rule.park == "never" or config.staleness.token == "mask":
        return
    if bound == 0:
        text = "what is parked is dropped: when it goes on its tokens are older than queue.bound 0 allows"
        remedy = 'Use queue.bound = 2, or staleness.token = "mask", or partial.park = "never"'
        yield Clash(("partial.park", "queue.bound"), text, remedy)
    elif rule.after_steps > bound:
        text = f"stragglers are dropped before they are parked: their tokens are too old after {bound} steps"
        remedy = f'Use {bound} or less, a larger queue.bound, or staleness.token = "mask"'
        yield Clash(("partial.after_steps", "queue.bound"), text, remedy)


def a_rollback_has_a_checkpoint(config: Config) -> Iterator[Clash]:
    """Without checkpoints in between, a rollback takes the run to its beginning."""
    if config.guard.action == "rollback" and config.checkpoint.every_steps == 0:
        rule = "a rollback goes back to the beginning: nothing is saved in between"
        yield Clash(("checkpoint.every_steps", "guard.action"), rule, "Use checkpoint.every_steps = 10")


def a_group_runs_together(config: Config) -> Iterator[Clash]:
    """Rollouts of a group go to the same replica, and settle together."""
    size = config.queue.group_size + config.oversampling.rollouts_extra
    if size > config.generator.max_running:
        rule = f"the {size} rollouts of a group take turns in the {config.generator.max_running} places of a "
        rule += "replica: each step takes longer"
        yield Clash(("generator.max_running", "queue.group_size"), rule, f"Use {size} or more")
    most = config.queue.max_running_rollouts
    if 0 < most < size:
        rule = f"a group of {size} is let in whole, one at a time, so more than {most} run all the same"
        yield Clash(("queue.max_running_rollouts", "queue.group_size"), rule, f"Use {size} or more, or 0")


def control_has_something_to_turn(config: Config) -> Iterator[Clash]:
    """Without room between settings and bounds, the controller can only look on."""
    control, bound = config.control, config.queue.bound
    if control.mode == "off":
        return
    if not control.levers:
        yield Clash(("control.levers", "control.mode"), "the controller may turn nothing", 'Use mode = "off"')
    elif bound == 0 and not _oversampling_at_bound_0(config) & set(control.levers):
        rule = (
            "with queue.bound 0 the two halves take turns: only oversampling, which it may not turn, would "
        )
        rule += "shorten the trainer's wait"
        yield Clash(("control.levers", "queue.bound"), rule, "Use queue.bound = 1 or more")


def _oversampling_at_bound_0(config: Config) -> set[str]:
    """Return the levers that are left: extra groups that are kept need room within the bound."""
    return {"rollouts_extra"} | ({"groups_extra"} if config.oversampling.when_met == "cancel" else set())


def a_command_may_run_as_long_as_it_is_waited_for(config: Config) -> Iterator[Clash]:
    """Whoever waits for a sandbox must wait longer than it may take."""
    sandbox, wall = config.sandbox, config.sandbox.wall_s
    for key, limit, who in (
        ("environment.rollout_timeout_s", config.environment.rollout_timeout_s, "rollout"),
        ("reward.timeout_s", config.reward.timeout_s, "verifier"),
    ):
        if wall >= limit:
            rule = f"a {who} is given up after {limit:g} s, and one command may run for {wall:g} s"
            yield Clash((key, "sandbox.wall_s"), rule, f"Use {2 * wall:g}, or a smaller sandbox.wall_s")
    if sandbox.longest_start_s > config.deadlines.sandbox_s:
        rule = f"a sandbox is given up after {config.deadlines.sandbox_s:g} s, and may take "
        rule += f"{sandbox.longest_start_s:g} s to start"
        remedy = f"Use {sandbox.longest_start_s:g}, or a smaller sandbox.start_timeout_s"
        yield Clash(("deadlines.sandbox_s", "sandbox.start_timeout_s"), rule, remedy)


def a_judge_may_take_as_long_as_it_is_waited_for(config: Config) -> Iterator[Clash]:
    """A request that outlasts the whole score is never given up by itself, and never tried again."""
    judge, limit_s = config.judge, config.reward.timeout_s
    if judge.is_on and judge.each and judge.request_timeout_s >= limit_s:
        rule = (
            f"a score is given up after {limit_s:g} s, and one request may take {judge.request_timeout_s:g} s"
        )
        remedy = f"Use {2 * judge.request_timeout_s:g}, or a smaller judge.request_timeout_s"
        yield Clash(("reward.timeout_s", "judge.request_timeout_s"), rule, remedy)


DOUBTS: tuple[Callable[[Config], Iterator[Clash]], ...] = (
    the_learning_rate_lasts,
    all_weights_learn_slower_than_lora,
    what_is_parked_is_young_enough,
    a_rollback_has_a_checkpoint,
    a_group_runs_together,
    control_has_something_to_turn,
    a_command_may_run_as_long_as_it_is_waited_for,
    a_judge_may_take_as_long_as_it_is_waited_for,
)
