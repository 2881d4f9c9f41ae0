"""A taskset of verifiers 0.4 with a toolset, written for that library alone: sums that a tool may do."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["ToolSums"]


class Calls(vf.State):
    """What a rollout and its tool server share."""

    num: int = 0


class Calculator(vf.Toolset[vf.SharedToolsetConfig, Calls]):
    """One process for all rollouts."""

    @vf.tool
    async def add(self, left: int, right: int) -> int:
        """Add two numbers."""
        self.state.num += 1
        return left + right


class SumData(vf.TaskData):
    """One sum."""

    total: int


class SumTask(vf.Task[SumData, Calls]):
    """Right, and by the tool."""

    @vf.reward(weight=0.8)
    async def right(self, trace: vf.Trace) -> float:
        """Return whether the last answer is the sum and nothing else."""
        return float(trace.last_reply == str(self.data.total))

    @vf.reward(weight=0.2)
    async def used(self, trace: vf.Trace) -> float:
        """Return whether the tool was called."""
        return float(trace.state.num > 0)


class SumsConfig(vf.TasksetConfig):
    """What the taskset takes."""

    limit: int = 10
    """Numbers are below this."""
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class ToolSums(vf.Taskset[SumTask, SumsConfig]):
    """All sums of two numbers."""

    def load(self) -> Iterable[SumTask]:
        """Yield the tasks."""
        for left, right in itertools.product(range(self.config.limit), repeat=2):
            yield SumTask(SumData(prompt=f"{left}+{right}=", total=left + right), self.config.task)

    @classmethod
    def toolsets(cls, config: SumsConfig) -> list[vf.Toolset]:
        """Return the tool servers that all tasks share."""
        return [Calculator(config.tools)]


if __name__ == "__main__":
    Calculator.run()
