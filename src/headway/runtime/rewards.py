"""The judge, the shaping and the rewards of groups that a config asks for, built where they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.rewards.group import load_group_reward
from headway.rewards.judge import Judge
from headway.rewards.stage import RewardStage

if TYPE_CHECKING:
    from pathlib import Path

    from headway.config.compose import Config
    from headway.rewards.group import GroupReward


def reward_stage(config: Config, run_dir: Path | None = None) -> RewardStage | None:
    """Return what the config adds to the scores of its environments, None for nothing.

    Args:
        config: of the run.
        run_dir: where the judge's answers are kept where the config names no folder; None for nowhere.

    Raises UserError when the judge's API key is not set.
    """
    judge = _judge(config, run_dir) if config.judge.each else None
    if judge is None and not config.shaping.is_on and config.reward.environment_weight == 1.0:
        return None
    return RewardStage(config.reward, config.shaping, judge)


def group_reward(config: Config, run_dir: Path | None = None) -> GroupReward | None:
    """Return what makes rewards of a whole group, None for nothing.

    Raises UserError when it cannot be loaded, or the judge's API key is not set.
    """
    settings = config.reward
    if not settings.group:
        return None
    judge = _judge(config, run_dir) if settings.group == "pairwise" else None
    return load_group_reward(settings.group, judge, settings.group_timeout_s)


def _judge(config: Config, run_dir: Path | None) -> Judge | None:
    if not config.judge.is_on:
        return None
    num = config.judge.each * config.environment.workers + (config.reward.group == "pairwise")
    return Judge(config.judge, None if run_dir is None else run_dir / "judge_cache", share=1 / max(1, num))


def longest_s(config: Config) -> float:
    """Return how long one rollout and its score may take, waits for sandboxes apart."""
    reward = config.reward
    waits_s = reward.max_wait_s if config.judge.is_on else 0.0
    score_s = reward.timeout_s + waits_s + config.environment.cancel_grace_s
    return config.environment.rollout_timeout_s + score_s
