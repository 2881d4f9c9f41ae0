"""From a settled group's rewards to its advantages: Signal in, GroupSignal out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.advantages import checked_numbers, load_advantage
from headway.algorithms.advantages.overlong import overlong_penalty
from headway.core.errors import HeadwayError
from headway.core.events import GroupSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headway.algorithms.advantages import TurnHalf
    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Signal


def signal_function(settings: AlgorithmSettings) -> Callable[[Signal], GroupSignal]:
    """Return the function that answers Signal: overlong shaping, then the configured advantage.

    Raises UserError when the advantage cannot be loaded. The returned function raises HeadwayError when the
    advantage breaks its contract, or needs rewards of turns that a rollout lacks.
    """
    advantage, name = load_advantage(settings), settings.advantage

    def answer(command: Signal) -> GroupSignal:
        rollouts = [rollout for rollout, _ in command.rewards]
        limits = settings.overlong_max_tokens, settings.overlong_buffer_tokens
        penalties = [overlong_penalty(num, *limits) for num in command.num_tokens] or [0.0] * len(rollouts)
        if advantage.turns is not None:
            rewards = _shaped_turns(command, penalties, name)
            turns = _checked_turns(advantage.turns, rewards, settings)
            peaks = [max(values, key=abs) for values in turns]
            return GroupSignal(command.group, tuple(zip(rollouts, peaks, strict=True)), turns=turns)
        rewards = [reward + penalty for (_, reward), penalty in zip(command.rewards, penalties, strict=True)]
        values = checked_numbers(advantage.group(rewards, settings), rewards, name)
        return GroupSignal(command.group, tuple(zip(rollouts, values, strict=True)))

    return answer


def _shaped_turns(command: Signal, penalties: list[float], name: str) -> list[list[float]]:
    """Return the rewards of turns with each rollout's penalty on its last one."""
    given = command.turn_rewards or ((),) * len(penalties)
    for (rollout, _), rewards in zip(command.rewards, given, strict=True):
        if not rewards:
            rule = f"advantage {name} needs a reward for each turn, and rollout {rollout} has none"
            remedy = "Return Reward(score, turns=(...)) from the environment's `score`"
            raise HeadwayError(rule, remedy=remedy, key="algorithm.advantage")
    return [[*rewards[:-1], rewards[-1] + penalty] for rewards, penalty in zip(given, penalties, strict=True)]


def _checked_turns(
    function: TurnHalf, rewards: Sequence[Sequence[float]], settings: AlgorithmSettings
) -> tuple[tuple[float, ...], ...]:
    """Return the advantages of turns. A rollout's own is the largest of them, 0 only where all are."""
    found = function(rewards, settings)
    if len(found) != len(rewards):
        rule = f"advantage {settings.advantage} must return one list for each of {len(rewards)} rollouts"
        raise HeadwayError(rule, value=len(found), key="algorithm.advantage")
    return tuple(
        tuple(checked_numbers(values, turns, settings.advantage))
        for values, turns in zip(found, rewards, strict=True)
    )
