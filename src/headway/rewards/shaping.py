"""What form and length add to a reward, each a number of its own beside the score that it is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.records import Reward
from headway.rewards.patterns import compiled, fits

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.rewards.case import Case
    from headway.rewards.settings import ShapingSettings


def matches(pattern: str) -> Callable[[Case], tuple[float, str]]:
    """Return a reward function: 1 when the last answer matches a regular expression as a whole, else 0."""
    form = compiled(pattern, dotall=True)

    def format(case: Case) -> tuple[float, str]:
        found = fits(form, case.answer.strip(), whole=True)
        return float(found), "as asked for" if found else "the answer has not the form that is asked for"

    return format


def not_truncated(case: Case) -> tuple[float, str]:
    """Return 0 when an answer was cut off at its limit, else 1."""
    return float(not case.truncated), "cut off at its limit" if case.truncated else "ended by itself"


def overlong(max_tokens: int, buffer_tokens: int) -> Callable[[Case], float]:
    """Return a reward function from 0 down to -1: the soft overlong punishment of DAPO (2025).

    0 up to max_tokens - buffer_tokens sampled tokens, then linear, -1 from max_tokens on.
    """

    def overlong(case: Case) -> float:
        num, start = case.num_tokens, max_tokens - buffer_tokens
        if num <= start:
            return 0.0
        return -1.0 if num >= max_tokens else (start - num) / buffer_tokens

    return overlong


def tokens_beyond(free_tokens: int, penalty: float, most: float) -> Callable[[Case], float]:
    """Return a reward function: minus `penalty` for each sampled token beyond, `most` at most."""

    def length(case: Case) -> float:
        return -min(most, penalty * max(0, case.num_tokens - free_tokens))

    return length


def shaped(case: Case, reward: Reward, settings: ShapingSettings) -> Reward:
    """Return a reward with what the settings add; metrics `unshaped` and `shaping_*` tell of it."""
    added: dict[str, float] = {}
    if settings.format:
        matched, _ = matches(settings.format)(case)
        added["shaping_format"] = settings.format_bonus if matched else -settings.format_penalty
    if settings.truncated_penalty:
        added["shaping_truncated"] = -settings.truncated_penalty * case.truncated
    if settings.token_penalty:
        bounds = settings.free_tokens, settings.token_penalty, settings.max_token_penalty
        added["shaping_length"] = tokens_beyond(*bounds)(case)
    total = sum(added.values())
    reasons = tuple(f"{name}: {value:+g}" for name, value in added.items() if value)
    metrics = {**reward.metrics, "unshaped": float(reward.score), **added}
    turns = (*reward.turns[:-1], reward.turns[-1] + total) if reward.turns else ()
    return Reward(reward.score + total, (*reward.reasons, *reasons), metrics, turns)
