"""Overlong shaping: answers near the length limit lose reward before the group is compared (DAPO 2025)."""

from __future__ import annotations


def overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Return what a rollout's length adds to its reward, from 0 down to -1.

    0 up to max_tokens - buffer_tokens, then linear, -1 from max_tokens on; 0 throughout for max_tokens 0.
    """
    if max_tokens == 0 or num_tokens <= max_tokens - buffer_tokens:
        return 0.0
    if num_tokens >= max_tokens:
        return -1.0
    return (max_tokens - buffer_tokens - num_tokens) / buffer_tokens
