"""Settings that were made in Python, at which no config has looked."""

from __future__ import annotations

from typing import Any, cast

from headway.core.check import Mismatch, convert
from headway.core.errors import EnvironmentSetupError
from headway.core.schema import keys_of


def must_hold(settings: Any, owner: str, page: str) -> None:
    """Check every field of a settings object, and the rules between them.

    Args:
        settings: of a settings dataclass.
        owner: what they are of, for the message.
        page: of the documentation, where a rule has no remedy of its own.

    Raises EnvironmentSetupError that names the first field that is wrong.
    """
    kind = cast("type[Any]", type(settings))
    for name, key in keys_of(kind).items():
        value = getattr(settings, name)
        try:
            convert(value, key.hint, key.rule)
        except Mismatch as mismatch:
            rule = f"{name} of {owner} {mismatch.rule}"
            raise EnvironmentSetupError(
                rule, value=value, remedy=mismatch.remedy or f"See docs/{page}"
            ) from None
    for problem in settings.problems() if hasattr(settings, "problems") else ():
        rule = f"{problem.key} of {owner} {problem.rule}"
        raise EnvironmentSetupError(rule, value=problem.value, remedy=problem.remedy or f"See docs/{page}")
