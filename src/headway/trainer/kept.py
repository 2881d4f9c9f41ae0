"""Whether what a payload says of truncated sampling can be trained on. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError
from headway.core.kept import Kept

if TYPE_CHECKING:
    from headway.core.records import TrainingSample


def check_kept(sample: TrainingSample, rollout: str, vocab: int) -> None:
    """Raise HeadwayError, naming the rollout, unless each trained token is among the ids kept for it."""
    try:
        kept = Kept.of(sample.streams)
    except ValueError as error:
        raise HeadwayError(f"the kept ids of rollout {rollout} cannot be read: {error}") from error
    if kept is None:
        return
    tokens = [token for token, flag in zip(sample.token_ids, sample.trainable, strict=True) if flag]
    if len(kept.counts) != len(tokens):
        rule = f"rollout {rollout} must have a count of kept ids for each of its {len(tokens)} trained tokens"
        raise HeadwayError(rule, value=len(kept.counts))
    if kept.ids and (min(kept.ids) < 0 or max(kept.ids) >= vocab):
        rule = f"kept ids of rollout {rollout} must be below the model's vocabulary of {vocab}"
        raise HeadwayError(rule, value=(min(kept.ids), max(kept.ids)))
    for token, ids in zip(tokens, kept.rows(), strict=True):
        if ids and token not in ids:
            raise HeadwayError(f"a token of rollout {rollout} must be among the ids kept for it", value=token)
        if len(set(ids)) < len(ids):
            raise HeadwayError(f"the ids kept for a token of rollout {rollout} must differ", value=token)
