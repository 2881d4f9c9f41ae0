"""The one normaliser: how much each trained token weighs in a batch's loss. No torch.

Invariant: a weight depends on sums over the whole optimizer batch and on the token's own rollout and
prompt, never on the micro-batch, row or rank that the token is computed in. So the gradient does not change
with micro-batch size, packing order, padding or number of ranks.
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
        denominators: global sums.
        group: the rollout's group, read by prompt-mean only.
        rollout_tokens: trained tokens in all of the rollout's samples.
        constant_tokens: read by constant only.

    Raises HeadwayError when the denominators cannot hold this rollout.
    """
    if normaliser == "token-mean":
        divisor = denominators.num_tokens
    elif normaliser == "seq-mean-token-mean":
        divisor = denominators.num_sequences * rollout_tokens
    elif normaliser == "constant":
        divisor = denominators.num_sequences * constant_tokens
    else:
        divisor = denominators.num_prompts * denominators.prompt_tokens.get(group, 0)
    if divisor <= 0 or rollout_tokens > denominators.num_tokens:
        rule = f"{normaliser} needs denominators that count the whole batch, this rollout included"
        raise HeadwayError(rule, value=denominators, remedy=f"Its group is {group!r}")
    return 1.0 / divisor
