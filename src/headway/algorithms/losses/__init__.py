"""Policy losses, one file each; those files import torch, this one does not.

A loss takes what is known of t trained tokens and returns two tensors:

    def my_loss(logp, behaviour_logp, advantages, settings): return per_token, clipped

`logp` [t] has the gradient, nats; `behaviour_logp` [t] is of the policy that sampled the tokens (mu);
`advantages` [t]; `settings` is AlgorithmSettings. `per_token` [t] is minimised; `clipped` [t] is true where
clipping took the gradient away. It is called with a part of the batch and must not average:
`headway.algorithms.normaliser` alone weighs tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headway.algorithms.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


class Loss(Protocol):
    """The form of a loss function."""

    def __call__(
        self, logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings, /
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each token and whether it was clipped, both [t]."""
        ...


LOSSES: Registry[Loss] = Registry(
    "loss",
    ("logp", "behaviour_logp", "advantages", "settings"),
    {name: f"headway.algorithms.losses.{name}:{name}" for name in ("grpo", "reinforce_is")},
)
