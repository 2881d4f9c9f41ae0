"""Whether what a payload says of truncated sampling can be trained on. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

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
    tokens = numpy.array(sample.token_ids)[numpy.array(sample.trainable, dtype=bool)]
    counts, ids = numpy.array(kept.counts), numpy.array(kept.ids)
    if len(counts) != len(tokens):
        rule = f"rollout {rollout} must have a count of kept ids for each of its {len(tokens)} trained tokens"
        raise HeadwayError(rule, value=len(counts))
    if not len(ids):
        return
    if ids.min() < 0 or ids.max() >= vocab:
        rule = f"kept ids of rollout {rollout} must be below the model's vocabulary of {vocab}"
        raise HeadwayError(rule, value=(int(ids.min()), int(ids.max())))
    owners = numpy.repeat(numpy.arange(len(tokens)), counts)
    if (numpy.diff(ids)[numpy.diff(owners) == 0] <= 0).any():
        raise HeadwayError(f"the ids kept for a token of rollout {rollout} must rise, each there once")
    found = numpy.bincount(owners[ids == tokens[owners]], minlength=len(tokens))
    if (missing := tokens[(found == 0) & (counts > 0)]).size:
        rule = f"a trained token of rollout {rollout} must be among the ids kept for it"
        raise HeadwayError(rule, value=int(missing[0]))
