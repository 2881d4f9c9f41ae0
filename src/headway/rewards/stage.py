"""What a config adds to an environment's own score: a judge's grade, and shaping.

Consumes the environment's reward of one case; waits for the judge. Invariant: the numbers that the reward is
made of are its metrics, `environment` and `judge` before their weights, `unshaped` before shaping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.records import Reward
from headway.rewards.case import prefixed
from headway.rewards.check import MalformedRewardFault, checked
from headway.rewards.shaping import shaped

if TYPE_CHECKING:
    from headway.rewards.case import Case
    from headway.rewards.judge import Judge
    from headway.rewards.settings import RewardSettings, ShapingSettings


class RewardStage:
    """The judge and the shaping of a run."""

    def __init__(
        self, settings: RewardSettings, shaping: ShapingSettings, judge: Judge | None = None
    ) -> None:
        self._settings = settings
        self._shaping = shaping
        self._judge = judge

    async def complete(self, case: Case, own: Reward) -> Reward:
        """Return the reward of a case, given the environment's own.

        Raises JudgeError when the judge failed.
        """
        weight = self._settings.environment_weight
        reward, judge = own, self._judge
        if weight != 1.0 or judge is not None:
            turns, metrics = tuple(weight * value for value in own.turns), dict(own.metrics)
            metrics["environment"] = float(own.score)
            reward = Reward(weight * own.score, own.reasons, metrics, turns)
        if judge is not None:
            reward = _added(reward, await judge(case), judge.settings.weight)
        if self._shaping.is_on and case.task.split == "train":
            reward = shaped(case, reward, self._shaping)
        return checked(reward)

    async def close(self) -> None:
        """Close the judge's connections."""
        if self._judge is not None:
            await self._judge.close()


def _added(reward: Reward, judged: Reward, weight: float) -> Reward:
    """Return a reward with the judge's; rewards of turns are added where both have them."""
    turns = tuple(weight * value for value in judged.turns)
    if turns and reward.turns:
        if len(turns) != len(reward.turns):
            rule = f"the environment rewards {len(reward.turns)} turns, and the judge graded {len(turns)}"
            raise MalformedRewardFault(rule)
        turns = tuple(mine + theirs for mine, theirs in zip(reward.turns, turns, strict=True))
    metrics = {**reward.metrics, "judge": judged.score, **prefixed("judge", judged.metrics)}
    reasons = (*reward.reasons, *(f"judge: {words}" for words in judged.reasons))
    return Reward(reward.score + weight * judged.score, reasons, metrics, turns or reward.turns)
