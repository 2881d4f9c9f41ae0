"""Why a rollout has no score. None of these is ever a number."""

from __future__ import annotations

from headway.core.errors import HeadwayError, RewardFault


class RewardTimeoutFault(RewardFault):
    """A reward function took longer than it may."""


class RewardRaisedFault(RewardFault):
    """A reward function raised."""


class JudgeError(HeadwayError):
    """A judge could not be asked, or gave no usable answer: infrastructure, whatever the rollout is worth."""


class JudgeAwayError(JudgeError):
    """A judge answered nothing at all, or that it is busy or down: any question would fail now."""
