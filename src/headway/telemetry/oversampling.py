"""What oversampling threw away, and the length bias that it causes, from the book of all rollouts.

Kept are the train rollouts that their group or batch took, whatever a filter did with them later. Thrown
away are the cancelled ones, finished or not, and those lost to failures. A rollout that was cut off counts
with the tokens that it had reached, so the mean over all is a lower bound, and the bias towards short ones
likewise. Rollouts that the end of the run stopped or left over are in neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.telemetry.ledger import Line

KINDS = ("finished", "unfinished", "errored")
_NEITHER = ("stopped", "unused", "carried", "evaluated")


def oversampling_of(lines: Iterable[Line]) -> dict[str, object]:
    """Return the rl.oversampling keys of the train rollouts' lines."""
    rollouts, tokens = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    num_kept = kept_tokens = 0
    for line in lines:
        if line.fate is None or line.fate in _NEITHER:
            continue
        if line.fate == "cancelled":
            kind = "unfinished" if line.num_ended_tokens is None else "finished"
        elif line.fate.startswith("failed_"):
            kind = "errored"
        else:
            num_kept += 1
            kept_tokens += line.num_tokens
            continue
        rollouts[kind] += 1
        tokens[kind] += line.num_tokens
    num_all, all_tokens = num_kept + sum(rollouts.values()), kept_tokens + sum(tokens.values())
    kept, every = ratio(kept_tokens, num_kept), ratio(all_tokens, num_all)
    keys: dict[str, object] = {}
    for kind in KINDS:
        keys[f"rl.oversampling.{kind}.rollout_fraction"] = ratio(rollouts[kind], num_all)
        keys[f"rl.oversampling.{kind}.token_fraction"] = ratio(tokens[kind], all_tokens)
    keys["rl.oversampling.kept_tokens"] = kept
    keys["rl.oversampling.all_tokens"] = every
    keys["rl.oversampling.length_ratio"] = None if kept is None or every is None else ratio(kept, every)
    return keys
