"""Sums for an agent: what it is told, and the hidden test of what it leaves."""

import random
from typing import Any


def tasks(split: str) -> list[dict[str, Any]]:
    """Return the tasks of a split: the same ones in every process."""
    rng = random.Random(0)
    sums = rng.sample([(a, b) for a in range(10) for b in range(10)], 100)
    chosen = sums[:16] if split == "eval" else sums[16:]
    return [
        {"id": f"{a}+{b}", "prompt": f"{a}+{b}=", "test": f'test "$(cat answer.txt)" = {a + b}'}
        for a, b in chosen
    ]
