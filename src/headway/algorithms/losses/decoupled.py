"""Decoupled PPO: a trust region around pi_old, a weight for mu (Hilton et al. 2022; AReaL)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.losses import PolicyLoss, Terms, Tokens
from headway.algorithms.losses.grpo import grpo
from headway.algorithms.losses.ratios import importance_ratio

if TYPE_CHECKING:
    from headway.algorithms.settings import AlgorithmSettings


def around_pi_old(tokens: Tokens, settings: AlgorithmSettings) -> Terms:
    """Return sg[pi_old/mu] times the loss of grpo with the ratio pi/pi_old.

    pi_old is the trainer's own policy at the start of the step. A batch makes one optimizer step, so
    pi/pi_old is 1, with a gradient, and its clip never acts: the weight pi_old/mu, which has no bound here,
    does all the work. grpo with `algorithm.correction` is the same with a bounded weight.
    """
    per_token, clipped = grpo(tokens.logp, tokens.old_logp, tokens.advantages, settings)
    return Terms(importance_ratio(tokens.old_logp, tokens.behaviour_logp) * per_token, clipped)


decoupled = PolicyLoss(around_pi_old)
