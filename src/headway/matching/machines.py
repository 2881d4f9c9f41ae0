"""When machines of a pool that both halves share should move, and how many. Pure.

With g machines generating P rollouts a second and t machines training at most C (while the trainer computes),
what is trained is min(P, C). After a move of k to the generator it is min(P (g + k) / g, C (t - k) / t): both
sides are taken to be proportional to their machines, which flatters a trainer whose step has a fixed part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.matching.control_signals import Cycle

_GAIN = 0.05  # least gain that is worth a move


def best_move(
    production_per_s: float, consumption_per_s: float, generator: int, trainer: int
) -> tuple[int, float]:
    """Return how many machines to move to the generator (negative: to the trainer) and the relative gain.

    Each side keeps one machine.
    """
    now = min(production_per_s, consumption_per_s)
    if now <= 0:
        return 0, 0.0
    moves = range(1 - generator, trainer)
    rates = {
        move: min(
            production_per_s * (generator + move) / generator, consumption_per_s * (trainer - move) / trainer
        )
        for move in moves
    }
    best = max(moves, key=lambda move: (rates[move], -abs(move)))
    return best, rates[best] / now - 1.0


def advise_move(cycles: Sequence[Cycle], generator: int, trainer: int, *, full: bool) -> str:
    """Return the advice in one line, "" where the split is good or settings can still do something.

    Args:
        cycles: the newest ones.
        generator: machines.
        trainer: machines.
        full: whether the engines can take no more; while they have room the trainer's wait is not theirs.
    """
    length_s = sum(cycle.length_s for cycle in cycles)
    wait = sum(cycle.wait_s for cycle in cycles) / length_s
    rate = sum(cycle.num_rollouts for cycle in cycles) / length_s
    if wait > _GAIN and not full:
        return ""
    running = sum(cycle.in_flight for cycle in cycles) / len(cycles)
    group = sum(cycle.num_rollouts for cycle in cycles) / max(1, sum(cycle.num_groups for cycle in cycles))
    idle = group * min(cycle.num_queued for cycle in cycles)  # rollouts that stand ready all the time
    production = rate * (1.0 + idle / running) if running > 0 else rate  # by Little's law, without them
    move, gain = best_move(production, rate / max(1e-9, 1.0 - wait), generator, trainer)
    if gain < _GAIN:
        return ""
    source, target = ("trainer", "generator") if move > 0 else ("generator", "trainer")
    why = f"the trainer waited {wait:.0%} of the last {len(cycles)} cycles"
    return f"move {abs(move)} of the {source}'s machines to the {target}: {why}; about {gain:+.0%} samples/s"
