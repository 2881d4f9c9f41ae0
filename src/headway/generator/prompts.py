"""Which tokens are computed next: prompts in chunks, and what several begin with once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.generator.prefixes import common_prefix

if TYPE_CHECKING:
    from headway.generator.live import Live
    from headway.generator.slots import Slots


def next_chunk(running: Sequence[Live], slots: Slots, num_tokens: int) -> list[tuple[Live, int]]:
    """Return whose tokens to compute next, and how many of each, after taking over what others have.

    Args:
        running: by admission.
        slots: of the running requests.
        num_tokens: of the chunk, at most.
    """
    left = num_tokens
    chosen: list[tuple[Live, int]] = []
    for live in running:
        if left == 0:
            break
        if not live.lacking or (live.usable == len(live.tokens) - 1 and _will_share(live, chosen)):
            continue
        assert live.slot is not None
        slots.extend(live.slot, live.usable)
        if live.lacking:
            n = min(left, live.lacking)
            chosen.append((live, n))
            left -= n
    return chosen


def _will_share(live: Live, chosen: Sequence[tuple[Live, int]]) -> bool:
    """Whether it pays to wait: a request in this chunk computes at least a quarter of what this one lacks."""
    assert live.slot is not None
    limit = len(live.tokens) - 1
    for other, _ in chosen:
        if other.served is not live.served:
            continue
        assert other.slot is not None
        common = common_prefix(other.tokens, live.tokens, min(limit, len(other.tokens) - 1))
        has = max(live.slot.resident, min(other.slot.resident, common))  # now, by taking over
        if common > has and (common - has) * 4 >= limit - has:
            return True
    return False
