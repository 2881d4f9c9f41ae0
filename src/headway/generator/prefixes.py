"""What a slot holds: the tokens of a request or a kept session, or a prefix that several of those share.

A shared prefix is immutable and held once. Whoever shares it has only what follows in a slot of its own, so
that the column of a token is its position less the number of tokens shared. A prefix may itself begin with
a shared one; a holder may use a part of a prefix.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy

from headway.core.records import TOKENS
from headway.generator.policies import Salt

MIN_SHARED_TOKENS = 64
"""Shorter common prefixes are copied."""

MIN_SPARED_TOKENS = 512
"""Copies of tokens that sharing must spare: one more part to attend to costs a step as much as so many.

Measured at hidden 128: 8 requests gain with 64 tokens, 2 lose; about 500 follow for 2 from what a part costs.
"""


def _no_tokens() -> array[int]:
    return array(TOKENS)


@dataclass(slots=True, eq=False)
class Region:
    """The contents of a slot; the object stays with them when they move to another index."""

    index: int
    tokens: array[int] = field(default_factory=_no_tokens)  # the first `resident` of them have KV
    resident: int = 0
    shared: tuple[Part, ...] = ()  # where the first tokens have it
    salt: Salt | None = None  # what the newest KV was computed with; None where nobody else may use it
    is_mixed: bool = False  # some of the KV is of earlier weights
    used_at: int = 0  # order of last use

    @property
    def start(self) -> int:
        """Tokens before the first that this slot holds itself."""
        return sum([part.num_tokens for part in self.shared]) if self.shared else 0

    @property
    def own(self) -> int:
        """Tokens that this slot holds itself."""
        return self.resident - self.start

    def holds(self, salt: Salt | None) -> bool:
        """Say whether all KV here was computed with this."""
        return self.salt == salt and not self.is_mixed


@dataclass(slots=True, eq=False)
class Prefix(Region):
    """A shared prefix."""

    num_holders: int = 0  # slots and prefixes that begin with it


@dataclass(frozen=True, slots=True)
class Part:
    """The first tokens of a prefix's slot."""

    prefix: Prefix
    num_tokens: int


@dataclass(slots=True, eq=False)
class Slot(Region):
    """A request's context, or what is kept of a session."""

    busy: bool = False
    session: str | None = None
    hoped: int = 0  # tokens that it may come to share with a request that runs

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Index and number of tokens of each shared part."""
        return tuple((part.prefix.index, part.num_tokens) for part in self.shared)


def common_prefix(a: array[int], b: array[int], limit: int) -> int:
    """Return the length of the longest common prefix, at most `limit` tokens."""
    limit = min(limit, len(a), len(b))
    if limit == 0 or a[0] != b[0]:
        return 0
    same = numpy.frombuffer(a, numpy.int32, limit) == numpy.frombuffer(b, numpy.int32, limit)
    first = int(same.argmin())
    return limit if same[first] else first
