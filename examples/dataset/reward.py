"""A reward of your own for rows of sums.jsonl: right is 1, near earns a little."""

from typing import Any

from headway.core.records import Reward


def near(answer: str, row: dict[str, Any]) -> Reward:
    """1 for the right number, at most 0.2 for one that is near, 0 for anything else."""
    try:
        off = abs(int(answer) - row["answer"])
    except ValueError:
        return Reward(0.0, (f"no number: {answer[:40]!r}",))
    return Reward(1.0 if off == 0 else 0.2 / off, (f"off by {off}",), {"off": float(off)})
