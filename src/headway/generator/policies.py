"""The policies that one engine answers for, each with the version of its weights.

Invariant: KV is used again only under the salt that it was computed with: a policy and the count of its
weights' changes. So no policy, tenant or version ever attends to what another computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.protocols import MAIN_POLICY
from headway.generator.adapters import AdapterWeights


class Salt(NamedTuple):
    """What KV was computed with."""

    policy: str
    epoch: int  # changes of the policy's weights in this engine


@dataclass(slots=True)
class Served:
    """One policy: the decoder's weights as they are, or with an adapter."""

    name: str
    lineage: int
    number: int
    epoch: int = 0
    adapter: AdapterWeights | None = None

    def __str__(self) -> str:
        version = f"version {self.lineage}.{self.number}"
        return version if self.adapter is None else f"{version} of adapter {self.name!r}"

    @property
    def salt(self) -> Salt:
        """Return what KV computed now may be found by."""
        return Salt(self.name, self.epoch)

    def update(self, lineage: int, number: int) -> None:
        """Take up other weights."""
        self.lineage, self.number = lineage, number
        self.epoch += 1


@dataclass(slots=True)
class Policies:
    """Who answers under which name. Changed by the engine's thread alone.

    Until the first adapter is loaded the main policy answers under every name; from then on only under
    MAIN_POLICY, so that a request for an adapter that is gone is never answered by another policy.
    """

    main: Served  # the decoder's weights as they are
    adapters: dict[str, Served] = field(default_factory=dict[str, Served])
    _strict: bool = False

    def named(self, policy: str) -> Served | None:
        """Return who answers under a name, if anybody does."""
        if self._strict and policy != MAIN_POLICY:
            return self.adapters.get(policy)
        return self.main

    def refusal(self, policy: str) -> str:
        """Return why nobody answers under a name."""
        names = ", ".join([MAIN_POLICY, *sorted(self.adapters)])
        return f"no adapter is loaded under the name {policy!r}; there are {names}"

    def add(self, served: Served) -> None:
        """Answer under a new name."""
        self.adapters[served.name] = served
        self._strict = True

    @property
    def num_bytes(self) -> int:
        """Memory that the adapters take."""
        return sum(each.adapter.num_bytes for each in self.adapters.values() if each.adapter is not None)
