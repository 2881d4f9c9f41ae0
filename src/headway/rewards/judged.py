"""What a judge is shown of a case, and the reward that its grades make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headway.core.records import Reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.rewards.case import Case
    from headway.rewards.grades import Grade


def as_reward(grades: Sequence[Grade], *, per_turn: bool) -> Reward:
    """Return the mean of grades; with per_turn each is the reward of its turn."""
    scores = [grade.score for grade in grades]
    metrics = {
        "cached": sum(grade.cached for grade in grades) / len(grades),
        "repaired": sum(grade.repaired for grade in grades) / len(grades),
    }
    reasons = tuple(
        f"turn {at}: {grade.words}" if per_turn else grade.words for at, grade in enumerate(grades)
    )
    return Reward(sum(scores) / len(scores), reasons, metrics, tuple(scores) if per_turn else ())


def texts(case: Case, turn: int | None = None) -> dict[str, str]:
    """Return the fields of a prompt for a case, or for one of its answers and what came before it."""
    transcript = case.transcript
    if turn is not None:
        places = [at for at, message in enumerate(transcript) if message["role"] == "assistant"]
        transcript = transcript[: places[turn] + 1]
    values = {
        "question": case.question,
        "answer": case.answer if turn is None else case.answers[turn],
        "conversation": "\n\n".join(f"[{each['role']}]\n{each['content']}" for each in transcript),
    }
    for prefix, table in (("payload", case.payload), ("data", case.data)):
        for key, value in table.items():
            values[f"{prefix}.{key}"] = value if isinstance(value, str) else json.dumps(value)
    return values
