"""The [algorithm] settings. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.algorithms.advantages import ADVANTAGES
from headway.algorithms.losses import LOSSES
from headway.core.settings import Problem, setting

Normaliser = Literal["token-mean", "seq-mean-token-mean", "constant", "prompt-mean"]


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    """How rewards become a gradient."""

    advantage: str = setting(
        "grpo",
        "Advantage of a rollout within its group: grpo, dr_grpo, rloo, or your own: an import "
        "path module:function, or file.py:function with a path relative to the config file.",
    )
    std_eps: float = setting(1e-4, "Added to the group's standard deviation in grpo.", ge=0)
    loss: str = setting(
        "grpo",
        "Policy loss: grpo (clipped ratio to the sampling policy), reinforce_is (truncated importance "
        "weight), or your own: an import path module:function, or file.py:function with a path relative to "
        "the config file.",
    )
    clip_low: float = setting(0.2, "grpo clips the ratio from below at 1 - clip_low.", ge=0, le=1)
    clip_high: float = setting(0.2, "grpo clips the ratio from above at 1 + clip_high; DAPO has 0.28.", ge=0)
    dual_clip: float = setting(
        3.0, "Largest ratio that weighs a token of negative advantage in grpo; 0 sets no bound.", ge=0
    )
    importance_cap: float = setting(
        2.0, "Largest importance weight pi/mu of a token in reinforce_is (absolute, not 1 + cap).", gt=0
    )
    normaliser: Normaliser = setting(
        "token-mean",
        "What the sum of token losses is divided by, over the whole batch: token-mean; seq-mean-token-mean "
        "(mean over rollouts of token means); constant (rollouts times constant_tokens, Dr. GRPO); "
        "prompt-mean (mean over prompts of token means).",
    )
    constant_tokens: int = setting(
        0, "Tokens that the constant normaliser counts for each rollout; 0 where it is not used.", ge=0
    )

    def problems(self) -> list[Problem]:
        """Return the rules between these settings that do not hold."""
        found: list[Problem] = []
        if error := ADVANTAGES.problem(self.advantage):
            found.append(Problem("advantage", self.advantage, error.rule, error.remedy))
        if error := LOSSES.problem(self.loss):
            found.append(Problem("loss", self.loss, error.rule, error.remedy))
        if self.normaliser == "constant" and self.constant_tokens == 0:
            rule = "the constant normaliser needs constant_tokens >= 1"
            remedy = "Set it to the most tokens that a rollout may sample"
            found.append(Problem("constant_tokens", self.constant_tokens, rule, remedy))
        if 0 < self.dual_clip <= 1 + self.clip_high:
            rule = f"dual_clip must be above 1 + clip_high = {1 + self.clip_high:g}, or 0"
            found.append(Problem("dual_clip", self.dual_clip, rule, "3 is the usual value"))
        return found
