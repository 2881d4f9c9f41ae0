"""The ids that truncated sampling drew from, token by token: the two streams KEPT_COUNTS and KEPT_IDS.

Top-k, top-p and min-p leave some tokens out and renormalise over the rest, and so must whoever computes the
log-prob of such a sample again. A count of 0 stands for the whole vocabulary: the token was not truncated.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headway.core.records import KEPT_COUNTS, KEPT_IDS, TOKENS, Stream


def _none() -> array[int]:
    return array(TOKENS)


@dataclass(slots=True)
class Kept:
    """The kept ids of n sampled tokens."""

    counts: array[int] = field(default_factory=_none)  # [n], 0 for the whole vocabulary
    ids: array[int] = field(default_factory=_none)  # each token's, one after the other, [sum of counts]

    @staticmethod
    def whole(num_tokens: int) -> Kept:
        """Return what tokens have that were not truncated."""
        return Kept(array(TOKENS, [0]) * num_tokens)

    @staticmethod
    def of(streams: Mapping[str, Stream]) -> Kept | None:
        """Read the two streams, None without them.

        Raises ValueError when they do not belong together.
        """
        counts, ids = streams.get(KEPT_COUNTS), streams.get(KEPT_IDS)
        if counts is None and ids is None:
            return None
        if counts is None or ids is None or {counts.dtype, ids.dtype} != {"int32"}:
            raise ValueError(f"{KEPT_IDS} and {KEPT_COUNTS} must come together, both int32")
        kept = Kept(_read(counts), _read(ids))
        if any(count < 0 for count in kept.counts) or sum(kept.counts) != len(kept.ids):
            raise ValueError(f"{KEPT_COUNTS} must sum to the {len(kept.ids)} kept ids")
        return kept

    def append(self, ids: Sequence[int]) -> None:
        """Add one token's ids; none for the whole vocabulary."""
        self.counts.append(len(ids))
        self.ids.extend(ids)

    def extend(self, other: Kept) -> None:
        """Add other tokens after these."""
        self.counts.extend(other.counts)
        self.ids.extend(other.ids)

    def rows(self) -> list[array[int]]:
        """Return each token's ids."""
        ends = list(accumulate(self.counts))
        return [self.ids[end - count : end] for end, count in zip(ends, self.counts, strict=True)]

    def only(self, flags: Iterable[bool]) -> Kept:
        """Return what the tokens with a flag have."""
        kept = Kept()
        for ids, flag in zip(self.rows(), flags, strict=True):
            if flag:
                kept.append(ids)
        return kept

    def streams(self) -> dict[str, Stream]:
        """Return the two streams."""
        return {
            KEPT_COUNTS: Stream("sampled", "int32", (len(self.counts),), self.counts.tobytes()),
            KEPT_IDS: Stream("kept", "int32", (len(self.ids),), self.ids.tobytes()),
        }


def grown(kept: Kept | None, num_before: int, streams: Mapping[str, Stream], num_tokens: int) -> Kept | None:
    """Return the kept ids of `num_before` tokens and of `num_tokens` more; None while no token has any.

    Args:
        kept: of the tokens before; it is added to. None when none of them was truncated.
        num_before: tokens before.
        streams: of the new tokens.
        num_tokens: new tokens.

    Raises ValueError when the streams do not cover the new tokens.
    """
    new = Kept.of(streams)
    if new is None and kept is None:
        return None
    new = new or Kept.whole(num_tokens)
    if len(new.counts) != num_tokens:
        raise ValueError(f"{KEPT_COUNTS} must have a count for each of {num_tokens} sampled tokens")
    kept = kept or Kept.whole(num_before)
    kept.extend(new)
    return kept


def _read(stream: Stream) -> array[int]:
    values: array[int] = array(TOKENS)
    values.frombytes(stream.data)
    return values
