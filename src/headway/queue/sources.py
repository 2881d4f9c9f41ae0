"""Task sources: whose turn it is, so that the groups admitted follow the weights.

Each source's share of the groups is due by a schedule: its j-th group is early before place
`(j - 1) / share` and late after place `j / share`. Of the sources whose next group is not early, the one
that would be late first is taken. Invariant: at any moment each source has its share of the groups counted,
to within one group (the quota property of earliest-deadline scheduling on one machine).

A group that is dropped gives its place back to its source while the refill budget lasts, so that the mix of
what is trained follows the weights too. Beyond the budget, and for failed groups, the place counts as used:
a source that yields nothing may not take the turns of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.queue.entry_settings import Source

_EPS = 1e-9  # a share of a count is compared with whole numbers


@dataclass(slots=True)
class MixState:
    """How many groups each source has been given; in the snapshot."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    positions: dict[str, int] = field(default_factory=dict[str, int])  # pool -> next index in its train split
    given_back: int = 0  # places since the last batch
    exhausted: list[str] = field(default_factory=list[str])  # sources without any train task


def next_source(sources: Sequence[Source], state: MixState) -> Source:
    """Return the source whose turn it is; changes nothing. Sources with weight 0 are never taken."""
    whole = sum(source.weight for source in sources)
    place = sum(state.counts.get(source.name, 0) for source in sources) + 1
    shares = [(source, source.weight / whole, state.counts.get(source.name, 0)) for source in sources]
    due = [entry for entry in shares if entry[2] + _EPS < entry[1] * place]
    return min(due, key=lambda entry: math.ceil((entry[2] + 1) / entry[1] - _EPS))[0]


def count(state: MixState, source: str) -> None:
    """Count a group of this source."""
    state.counts[source] = state.counts.get(source, 0) + 1


def give_back(state: MixState, source: str, budget: int) -> None:
    """A dropped group's place may be taken by its source once more, at most `budget` times a batch."""
    if state.given_back < budget and state.counts.get(source, 0) > 0:
        state.given_back += 1
        state.counts[source] -= 1
