"""A user's verdict on a settled group: loaded by name, called by the driver, never by the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

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
    configured one answers neither with a bool nor with (bool, reason).
    """
    if not settings.verdict:
        return None
    function = load_function(settings.verdict, VERDICT_PARAMETERS)

    def checked(rewards: Sequence[float], lengths: Sequence[int]) -> tuple[bool, str]:
        answer = function(list(rewards), list(lengths))
        match answer:
            case bool():
                return answer, ""
            case (bool() as keep, str() as reason):
                return keep, " ".join(reason.split())
            case _:
                pass
        rule = f"{settings.verdict} must return True, False or (bool, reason)"
        raise HeadwayError(rule, value=repr(answer), key="acceptance.verdict")

    return checked
