"""The policies that one engine answers for, each with the version of its weights.

Invariant: KV is used again only under the salt that it was computed with: a policy and the count of its
weights' changes. So no policy, tenant or version ever attends to what another computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Salt(NamedTuple):
    """What KV was computed with."""

    policy: str
    epoch: int  # changes of the policy's weights in this engine


@dataclass(slots=True)
class Served:
    """One policy."""

    name: str
    lineage: int
    number: int
    epoch: int = 0

    @property
    def salt(self) -> Salt:
        """Return what KV computed now may be found by."""
        return Salt(self.name, self.epoch)

    def update(self, lineage: int, number: int) -> None:
        """Take up other weights."""
        self.lineage, self.number = lineage, number
        self.epoch += 1
