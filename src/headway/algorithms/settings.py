"""The [algorithm] settings. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.algorithms.advantages import ADVANTAGES
from headway.algorithms.corrections import CORRECTIONS, NONE
from headway.algorithms.losses import LOSSES
from headway.core.settings import Problem, setting

Normaliser = Literal["token-mean", "seq-mean-token-mean", "constant", "prompt-mean"]
Level = Literal["token", "sequence", "geometric"]
Estimator = Literal["k1", "k2", "k3"]

_OWN = (
    "or your own: an import path module:function, or file.py:function with a path relative to the config "
    "file."
)


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    """How rewards become a gradient."""

    advantage: str = setting(
        "grpo",
        "How rewards become advantages: grpo, dr_grpo, rloo, maxrl (within the group), magistral, "
        "reinforce_pp, reinforce_pp_baseline (with a part over the batch), process (rewards of turns), "
        + _OWN,
    )
    std_eps: float = setting(1e-4, "Added to a standard deviation that rewards are divided by.", ge=0)
    discount: float = setting(
        1.0,
        "What a reward loses on its way back: by trained token in reinforce_pp and reinforce_pp_baseline, "
        "by turn in process.",
        gt=0,
        le=1,
    )
    overlong_max_tokens: int = setting(
        0, "Sampled tokens from which on a rollout's reward is lowered by 1 (DAPO: 20480); 0 is off.", ge=0
    )
    overlong_buffer_tokens: int = setting(
        0, "Tokens before overlong_max_tokens over which that penalty rises linearly (DAPO: 4096).", ge=0
    )
    loss: str = setting(
        "grpo",
        "Policy loss: grpo (clipped ratio to the sampling policy), reinforce_is or aipo (truncated "
        "importance weight), gspo (clipped ratio of sequences), cispo (clipped weight), decoupled, dppo, "
        "m2po, cross_entropy (-A log pi), " + _OWN,
    )
    clip_low: float = setting(
        0.2, "grpo and decoupled clip the ratio from below at 1 - clip_low.", ge=0, le=1
    )
    clip_high: float = setting(
        0.2, "grpo and decoupled clip the ratio from above at 1 + clip_high; DAPO has 0.28.", ge=0
    )
    dual_clip: float = setting(
        3.0,
        "Largest ratio that weighs a token of negative advantage in grpo and decoupled; 0 sets no bound.",
        ge=0,
    )
    importance_cap: float = setting(
        2.0,
        "Largest importance weight pi/mu of a token in reinforce_is and aipo (absolute, not 1 + cap); AIPO "
        "has 2 to 10.",
        gt=0,
    )
    gspo_clip_low: float = setting(
        3e-4, "gspo clips a sequence's ratio from below at 1 - gspo_clip_low.", ge=0, le=1
    )
    gspo_clip_high: float = setting(
        4e-4, "gspo clips a sequence's ratio from above at 1 + gspo_clip_high.", ge=0
    )
    cispo_min_weight: float = setting(
        0.0, "Smallest importance weight in cispo (absolute, not 1 - e); 0 sets no bound.", ge=0
    )
    cispo_max_weight: float = setting(
        5.0, "Largest importance weight in cispo (absolute, not 1 + e; some code bases mean 1 + e).", gt=0
    )
    dppo_low: float = setting(
        0.2, "dppo masks a token of negative advantage whose probability fell by more.", ge=0, le=1
    )
    dppo_high: float = setting(
        0.2, "dppo masks a token of positive advantage whose probability rose by more.", ge=0, le=1
    )
    dppo_kl: float = setting(1e-3, "Weight of the squared log-ratio in dppo.", ge=0)
    m2po_threshold: float = setting(
        0.04, "Mean squared log-ratio of the batch's tokens that m2po leaves in.", gt=0
    )
    correction: str = setting(
        NONE,
        "Weight of a token for the gap between the sampling policy and the trainer's own at the step, with "
        "any loss but decoupled: none, tis, mis, icepop, " + _OWN,
    )
    correction_level: Level = setting(
        "token",
        "Whose ratio the correction sees: token, sequence (product over the training sample), or geometric "
        "(the geometric mean over it).",
    )
    tis_cap: float = setting(2.0, "Largest weight in tis.", gt=0)
    mis_min: float = setting(0.5, "mis drops what has a smaller ratio.", ge=0)
    mis_max: float = setting(2.0, "mis drops what has a larger ratio.", gt=0)
    icepop_min: float = setting(0.5, "icepop drops what has a smaller ratio.", ge=0)
    icepop_max: float = setting(5.0, "icepop drops what has a larger ratio.", gt=0)
    sequence_mask_delta: float | None = setting(
        None,
        "Drops tokens of negative advantage in training samples whose mean of log mu - log pi is larger. "
        "Unset: off.",
        ge=0,
    )
    kl_coef: float = setting(
        0.0,
        "Weight of the KL penalty to the model that the run began from; needs LoRA, and a forward pass more.",
        ge=0,
    )
    kl_estimator: Estimator = setting(
        "k3", "Of that penalty, with d = log ref - log pi: k1 = -d, k2 = d^2/2, k3 = e^d - d - 1."
    )
    kl_importance: bool = setting(
        False, "Multiply the penalty by pi/mu, which makes its gradient unbiased; k1 needs it."
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
        for key, registry, name in (
            ("advantage", ADVANTAGES, self.advantage),
            ("loss", LOSSES, self.loss),
            ("correction", CORRECTIONS, self.correction),
        ):
            if error := registry.problem(name):
                found.append(Problem(key, name, error.rule, error.remedy))
        if self.normaliser == "constant" and self.constant_tokens == 0:
            rule = "the constant normaliser needs constant_tokens >= 1"
            remedy = "Set it to the most tokens that a rollout may sample"
            found.append(Problem("constant_tokens", self.constant_tokens, rule, remedy))
        if 0 < self.dual_clip <= 1 + self.clip_high:
            rule = f"dual_clip must be above 1 + clip_high = {1 + self.clip_high:g}, or 0"
            found.append(Problem("dual_clip", self.dual_clip, rule, "3 is the usual value"))
        return found + self._unread() + self._combinations()

    def _unread(self) -> list[Problem]:
        """A bound that was changed for a loss which has another one would be ignored."""
        if self.loss not in ("gspo", "cispo"):
            return []
        own = {
            "gspo": ("gspo_clip_low", "gspo_clip_high"),
            "cispo": ("cispo_min_weight", "cispo_max_weight"),
        }[self.loss]
        changed = [(key, value) for key in ("clip_low", "clip_high") if (value := getattr(self, key)) != 0.2]
        return [
            Problem(key, value, f"{key} is not read by the loss {self.loss}", f"Set {mine} instead")
            for key, value in changed
            for mine in (own[key == "clip_high"],)
        ]

    def _combinations(self) -> list[Problem]:
        """Parts that do not go together, and bounds that cross."""
        found: list[Problem] = []
        for low, high in (
            ("cispo_min_weight", "cispo_max_weight"),
            ("mis_min", "mis_max"),
            ("icepop_min", "icepop_max"),
        ):
            if getattr(self, low) >= getattr(self, high):
                rule = f"{low} must be below {high} = {getattr(self, high):g}"
                found.append(Problem(low, getattr(self, low), rule, f"Lower {low} or raise {high}"))
        if self.loss == "decoupled" and self.correction != NONE:
            rule = "must be none with decoupled, which has the weight pi_old/mu of its own"
            remedy = (
                f'Use loss = "grpo" with correction = "{self.correction}", '
                'or loss = "decoupled" without a correction'
            )
            found.append(Problem("correction", self.correction, rule, remedy))
        if self.kl_coef > 0 and self.kl_estimator == "k1" and not self.kl_importance:
            rule = "k1 as a term of the loss has a gradient of mean zero: it needs kl_importance = true"
            found.append(Problem("kl_estimator", self.kl_estimator, rule, "k2 and k3 need nothing more"))
        if self.overlong_buffer_tokens > self.overlong_max_tokens:
            rule = f"overlong_buffer_tokens must be at most overlong_max_tokens = {self.overlong_max_tokens}"
            remedy = "DAPO has 4096 before 20480"
            found.append(Problem("overlong_buffer_tokens", self.overlong_buffer_tokens, rule, remedy))
        if self.overlong_max_tokens > 0 and self.advantage == "maxrl":
            rule = "overlong_max_tokens lowers rewards below 0, and maxrl divides by their mean"
            remedy = "Set overlong_max_tokens = 0, or another advantage"
            found.append(Problem("overlong_max_tokens", self.overlong_max_tokens, rule, remedy))
        return found
