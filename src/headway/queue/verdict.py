"""A user's verdict on a settled group: loaded by name, called by the driver, never by the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from headway.core.errors import HeadwayError
from headway.core.hooks import load_function
from headway.queue.entry_settings import VERDICT_PARAMETERS

if TYPE_CHECKING:
    from headway.queue.entry_settings import AcceptanceSettings

Verdict: TypeAlias = "Callable[[Sequence[float], Sequence[int]], tuple[bool, str]]"


def verdict_function(settings: AcceptanceSettings) -> Verdict | None:
    """Return the configured verdict, checked; None where there is none.

    Rewards and sampled tokens of one group's rollouts in, in the same order; whether it is kept and why out.
    Raises HookError when the function cannot be loaded. The returned function raises HeadwayError when the
    configured one answers neither with a bool (numpy's is one too) nor with (bool, reason of one line).
    """
    if not settings.verdict:
        return None
    function = load_function(settings.verdict, VERDICT_PARAMETERS)

    def checked(rewards: Sequence[float], lengths: Sequence[int]) -> tuple[bool, str]:
        answer: Any = function(list(rewards), list(lengths))
        match answer:
            case (keep, str() as reason) if _is_bool(keep) and len(reason.splitlines()) < 2:
                return bool(keep), " ".join(reason.split())
            case _ if _is_bool(answer):
                return bool(answer), ""
            case _:
                pass
        rule = f"{settings.verdict} must return True, False or (bool, reason), the reason of one line"
        raise HeadwayError(rule, value=repr(answer), key="acceptance.verdict")

    return checked


def _is_bool(value: object) -> bool:
    """Say whether it is a bool, Python's or numpy's, which a comparison of numpy numbers gives."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))
