"""A step whose batch is not complete yet: what was handed over so far, and what it added up to.

Invariant: a group is in one part, whole, and the gradient lacks the batch's divisor until the batch is
complete (`headway.algorithms.normaliser`). Then it is what one pass over the whole batch gives, to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.algorithms.normaliser import Denominators, batch_divisor
from headway.core.commands import Row
from headway.core.errors import HeadwayError
from headway.trainer.sums import BatchSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.algorithms.settings import Normaliser


@dataclass(slots=True)
class Gathered:
    """The parts of one step so far."""

    rows: list[Row] = field(default_factory=list[Row])
    denominators: Denominators = field(default_factory=lambda: Denominators(0, 0, 0, {}, True))
    sums: BatchSums = field(default_factory=BatchSums)

    def check(self, rows: Sequence[Row], num_gathered: int) -> Sequence[Row]:
        """Return the rows of a batch that are not gathered yet; HeadwayError where the others differ."""
        if list(rows[:num_gathered]) != self.rows:
            rule = f"the first {num_gathered} rows of the batch must be those that were handed over before it"
            raise HeadwayError(rule, value=[row.rollout for row in self.rows])
        return rows[num_gathered:]

    def close(self, normaliser: Normaliser) -> float:
        """Return what the gradient is to be multiplied by, the batch being complete; the loss is as well.

        Raises HeadwayError when no token of the batch is trained.
        """
        divisor = batch_divisor(normaliser, self.denominators)
        if not divisor:
            names = [row.rollout for row in self.rows]
            raise HeadwayError("a batch must have at least one trained token", value=names)
        self.sums.loss /= divisor
        return 1.0 / divisor
