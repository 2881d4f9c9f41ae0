"""The one normaliser: how much each trained token weighs in a batch's loss. No torch.

Invariant: a weight depends on sums over the whole optimizer batch and on the token's own rollout and
prompt, never on the micro-batch, row or rank that the token is computed in. So the gradient does not change
with micro-batch size, packing order, padding or number of ranks.

Every weight is one over a number of the whole batch (`batch_divisor`: its tokens, sequences or prompts) times
something that a group knows of itself. So a gradient can be gathered before the batch is complete, with 1 in
that number's place (`Denominators.of_part`), and divided once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from headway.algorithms.settings import Normaliser


@dataclass(frozen=True, slots=True)
class Denominators:
    """Sums over the whole optimizer batch: all micro-batches, accumulations and ranks."""

    num_tokens: int  # trained tokens
    num_sequences: int  # rollouts with at least one trained token; a rollout's branches count once
    num_prompts: int  # groups with at least one trained token
    prompt_tokens: Mapping[str, int] = field(default_factory=dict[str, int])  # trained tokens, by group
    of_part: bool = False  # of whole groups of a batch that is not complete: weights lack the batch's divisor

    def __add__(self, other: Denominators) -> Denominators:
        """Return the sums of two parts of a batch.

        Raises HeadwayError for parts that share a group: its tokens were counted without one another.
        """
        if shared := self.prompt_tokens.keys() & other.prompt_tokens.keys():
            raise HeadwayError("a group must be in one part of a batch, whole", value=sorted(shared))
        return Denominators(
            self.num_tokens + other.num_tokens,
            self.num_sequences + other.num_sequences,
            self.num_prompts + other.num_prompts,
            {**self.prompt_tokens, **other.prompt_tokens},
            self.of_part or other.of_part,
        )


def batch_divisor(normaliser: Normaliser, denominators: Denominators) -> int:
    """Return the batch's own number that every token's weight is divided by: tokens, sequences or prompts."""
    if normaliser == "token-mean":
        return denominators.num_tokens
    if normaliser == "prompt-mean":
        return denominators.num_prompts
    return denominators.num_sequences


def token_weight(
    normaliser: Normaliser,
    denominators: Denominators,
    *,
    group: str,
    rollout_tokens: int,
    constant_tokens: int = 0,
) -> float:
    """Return the weight of each trained token of one rollout; the loss is the sum of weight times loss.

    Args:
        normaliser: token-mean: 1 / tokens. seq-mean-token-mean: 1 / (sequences * tokens of the rollout).
            constant (Dr. GRPO): 1 / (sequences * constant_tokens). prompt-mean: 1 / (prompts * tokens of
            the prompt).
        denominators: global sums; those of a part give the weight without the batch's divisor.
        group: the rollout's group, read by prompt-mean only.
        rollout_tokens: trained tokens in all of the rollout's samples.
        constant_tokens: read by constant only.

    Raises HeadwayError when the denominators cannot hold this rollout.
    """
    whole = 1 if denominators.of_part else batch_divisor(normaliser, denominators)
    if normaliser == "token-mean":
        divisor = whole
    elif normaliser == "seq-mean-token-mean":
        divisor = whole * rollout_tokens
    elif normaliser == "constant":
        divisor = whole * constant_tokens
    else:
        divisor = whole * denominators.prompt_tokens.get(group, 0)
    if divisor <= 0 or rollout_tokens > denominators.num_tokens:
        rule = f"{normaliser} needs denominators that count the whole batch, this rollout included"
        raise HeadwayError(rule, value=denominators, remedy=f"Its group is {group!r}")
    return 1.0 / divisor
