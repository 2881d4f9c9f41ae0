"""Policy losses, one file each; those files import torch, this one does not.

A loss of single tokens takes what is known of t trained tokens and returns two tensors:

    def my_loss(logp, behaviour_logp, advantages, settings): return per_token, clipped

`logp` [t] has the gradient, nats; `behaviour_logp` [t] is of the policy that the ratio is taken against: the
one that sampled the tokens (mu), or pi_old where `algorithm.correction` makes up for the difference of the
two; `advantages` [t]; `settings` is AlgorithmSettings. `per_token` [t] is minimised; `clipped` [t] is true
where clipping took the gradient away. It is called with a part of the batch and must not average:
`headway.algorithms.normaliser` alone weighs tokens.

A loss that needs more (sequences, pi_old and mu apart, a mask over the whole batch) is a `PolicyLoss`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headway.algorithms.registry import Registry
from headway.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


PartHalf: TypeAlias = "Callable[[Tokens, AlgorithmSettings], Terms]"
KeepHalf: TypeAlias = "Callable[[BatchLogps, AlgorithmSettings], Tensor]"


class Loss(Protocol):
    """The form of a loss of single tokens."""

    def __call__(
        self, logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings, /
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each token and whether it was clipped, both [t]."""
        ...


class Tokens(NamedTuple):
    """t trained tokens of a part of the batch; a sequence is never cut between two parts."""

    logp: Tensor  # nats, with the gradient, [t]
    old_logp: Tensor  # of the same policy at the start of the step (pi_old), detached, [t]
    behaviour_logp: Tensor  # of the policy that sampled the token (mu), [t]
    anchor_logp: (
        Tensor  # that the ratio is taken against: mu, or pi_old where a correction weighs pi_old/mu, [t]
    )
    advantages: Tensor  # [t]
    sequences: Tensor  # which sample of a rollout, 0 and up, not every number need occur, int64, [t]
    keep: Tensor | None = None  # what `PolicyLoss.batch` said of these tokens, bool, [t]


class Terms(NamedTuple):
    """What a loss says of t tokens."""

    per_token: Tensor  # minimised, [t]
    clipped: Tensor  # clipping took the gradient away, bool, [t]
    masked: Tensor | None = None  # a mask did, bool, [t]


class BatchLogps(NamedTuple):
    """The trained tokens of a whole optimizer batch, in the order of its rows, nothing with a gradient."""

    old_logp: Tensor  # [t]
    behaviour_logp: Tensor  # [t]
    anchor_logp: Tensor  # [t]
    advantages: Tensor  # [t]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss that needs more than single tokens.

    Attributes:
        function: loss of a part of the batch.
        batch: which tokens of the whole batch to keep, bool [t], from log-probs of a forward pass of its
            own before the step, so that it does not depend on micro-batches. It costs a forward pass:
            half as much again as a LoRA step. `function` finds it in `Tokens.keep` and does the masking.
    """

    function: PartHalf
    batch: KeepHalf | None = None

    def __call__(
        self, logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one sequence that is the whole batch, in the form of a loss of single tokens."""
        old, one = logp.detach(), (logp.detach() * 0).long()
        whole = BatchLogps(old, behaviour_logp, behaviour_logp, advantages)
        keep = None if self.batch is None else self.batch(whole, settings)
        tokens = Tokens(logp, old, behaviour_logp, behaviour_logp, advantages, one, keep)
        terms = self.function(tokens, settings)
        return terms.per_token, terms.clipped


_NAMES = ("grpo", "reinforce_is", "gspo", "cispo", "decoupled", "dppo", "m2po", "cross_entropy")
_PATHS = {name: name for name in _NAMES}
_PATHS["aipo"] = "reinforce_is"  # one formula, two names in the field

LOSSES: Registry[Loss | PolicyLoss] = Registry(
    "loss",
    ("logp", "behaviour_logp", "advantages", "settings"),
    {name: f"headway.algorithms.losses.{of}:{of}" for name, of in _PATHS.items()},
)


def load_loss(settings: AlgorithmSettings) -> PolicyLoss:
    """Return the configured loss; UserError when there is none."""
    return as_policy_loss(LOSSES.load(settings.loss))


def as_policy_loss(found: Loss | PolicyLoss) -> PolicyLoss:
    """Return a loss; one of single tokens is wrapped."""
    if isinstance(found, PolicyLoss):
        return found

    def of_tokens(tokens: Tokens, settings: AlgorithmSettings) -> Terms:
        said: object = found(tokens.logp, tokens.anchor_logp, tokens.advantages, settings)
        if not isinstance(said, tuple) or len(said) != 2:
            raise UserError(
                f"loss {settings.loss} must return two tensors: the loss of each token, and where it clipped",
                value=type(said).__name__,
                remedy="Where nothing is clipped, the second is torch.zeros_like(logp, dtype=torch.bool)",
                key="algorithm.loss",
            )
        return Terms(*said)

    return PolicyLoss(of_tokens)
