"""What the scheduler needs, from the sections that users write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.queue.entry_settings import Source
from headway.queue.settings import SchedulerSettings, ready_places, verify_places
from headway.sandbox.pools import kept_ready

if TYPE_CHECKING:
    from headway.config.compose import Config


def scheduler_settings(config: Config) -> SchedulerSettings:
    """Compose what the scheduler needs from the sections that users write."""
    return SchedulerSettings(
        queue=config.queue,
        pruning=config.pruning,
        concurrency=config.concurrency,
        guard=config.guard,
        staleness=config.staleness,
        partial=config.partial,
        recovery=config.recovery,
        eval=config.eval,
        stop=config.stop,
        checkpoint=config.checkpoint,
        deadlines=config.deadlines,
        oversampling=config.oversampling,
        acceptance=config.acceptance,
        curriculum=config.curriculum,
        sources=tuple(
            Source(name, source.weight, source.group_size, source.levels)
            for name, source in config.source.items()
        ),
        seed=config.run.seed,
        temperature=config.generator.temperature,
        kv=config.generator.kv_on_update,
        rollout_timeout_s=config.environment.rollout_timeout_s,
        score_timeout_s=config.reward.timeout_s,
        score_wait_s=config.reward.max_wait_s,
        max_score_tries=config.reward.max_tries,
        judge_outage_s=config.reward.max_outage_s,
        group_reward_s=config.reward.group_timeout_s if config.reward.group else 0.0,
        num_environment_workers=config.environment.workers,
        num_replicas=config.generator.replicas,
        max_sandboxes=config.sandbox.max_live,
        verify_sandboxes=verify_places(config.sandbox.max_live),
        ready_sandboxes=ready_places(
            config.sandbox.max_live, kept_ready(config.sandbox), config.environment.workers
        ),
        max_sandbox_starts_per_s=config.sandbox.max_starts_per_s,
        max_starting_sandboxes=config.sandbox.max_starting,
        solved_reward=config.telemetry.solved_reward,
    )
