"""A taskset of verifiers 0.4, written for that library alone: nothing here knows of Headway."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["PlainSums"]


class SumData(vf.TaskData):
    """One sum."""

    total: int


class SumTask(vf.Task[SumData]):
    """Right, or a number at least."""

    @vf.reward(weight=0.9)
    async def right(self, trace: vf.Trace) -> float:
        """Return whether the answer is the sum and nothing else."""
        return float(trace.last_reply == str(self.data.total))

    @vf.reward(weight=0.1)
    async def number(self, trace: vf.Trace) -> float:
        """Return whether the answer is a number."""
        return float(trace.last_reply.isdecimal())

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        """Return the answer's length, characters."""
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    """What the taskset takes."""

    limit: int = 10
    """Numbers are below this."""


class PlainSums(vf.Taskset[SumTask, SumsConfig]):
    """All sums of two numbers."""

    def load(self) -> Iterable[SumTask]:
        """Yield the tasks."""
        for left, right in itertools.product(range(self.config.limit), repeat=2):
            yield SumTask(SumData(prompt=f"{left}+{right}=", total=left + right), self.config.task)
