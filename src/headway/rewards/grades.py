"""How a judge is to answer, and what its answer says."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.rewards.patterns import compiled, last_match

if TYPE_CHECKING:
    from headway.rewards.settings import JudgeSettings

_FENCE = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)
_MAX_REASON = 300  # characters that are kept


class Unreadable(Exception):
    """An answer that holds no grade; it says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a judge said.

    Attributes:
        score: 0 for the lowest grade, 1 for the highest.
        grade: the number that it gave.
        reason: its words, "" for none.
        judge: who it was: the model as the endpoint names it, and the hash of all that it was told to do.
        cached: whether it was asked in another scoring.
        repaired: whether its first answer held no grade.
    """

    score: float
    grade: float
    reason: str
    judge: str
    cached: bool = False
    repaired: bool = False

    @property
    def words(self) -> str:
        """One line for people."""
        return f"{self.grade:g} by {self.judge}" + (f": {self.reason}" if self.reason else "")


def form_of(settings: JudgeSettings) -> str:
    """Return the words that tell a judge how to answer."""
    span = f"from {settings.low:g} (worst) to {settings.high:g} (best)"
    if settings.form == "json":
        return f'Answer with one JSON object, {{"reason": "one sentence", "score": a number {span}}}.'
    return f"Give one sentence of reason, then the score, a number {span}, on a line of its own: Score: N"


def response_format(settings: JudgeSettings) -> dict[str, Any]:
    """Return the field of a request that asks an endpoint for the form, empty for none."""
    if settings.form != "json" or settings.response_format == "none":
        return {}
    if settings.response_format == "object":
        return {"response_format": {"type": "json_object"}}
    schema = {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "score": {"type": "number", "minimum": settings.low, "maximum": settings.high},
        },
        "required": ["reason", "score"],
        "additionalProperties": False,
    }
    named = {"name": "grade", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def read_grade(text: str, settings: JudgeSettings) -> tuple[float, str]:
    """Return (grade, reason) of a judge's answer.

    Raises Unreadable when it holds none, or one out of bounds.
    """
    grade, reason = _of_json(text) if settings.form == "json" else _of_pattern(text, settings.pattern)
    if not settings.low <= grade <= settings.high:
        raise Unreadable(f"the score must be from {settings.low:g} to {settings.high:g}, it was {grade:g}")
    return grade, " ".join(reason.split())[:_MAX_REASON]


def _of_json(text: str) -> tuple[float, str]:
    fenced = _FENCE.match(text)
    try:
        found: object = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unreadable("it is no JSON object")
    answer = cast("dict[str, object]", found)
    score = answer.get("score")
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise Unreadable('it has no number "score"')
    reason = answer.get("reason", "")
    return _finite(score), reason if isinstance(reason, str) else json.dumps(reason)


def _of_pattern(text: str, pattern: str) -> tuple[float, str]:
    found = last_match(compiled(pattern), text)
    if found is None:
        raise Unreadable("it holds no score in the form that was asked for")
    try:
        return _finite(float(found[1] or "")), text[: found.start()]
    except ValueError:
        raise Unreadable(f"its score is no number: {found[1]!r}") from None


def _finite(number: float) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise Unreadable("its score is no finite number")
    return value
