"""Find a hook by its name, or a user's own function by import path or file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from headway.core.errors import UserError
from headway.core.hooks import HookError, is_own, load_function
from headway.core.near import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

F = TypeVar("F")


class Registry(Generic[F]):
    """Functions of one kind, by name.

    Built-in functions are listed by import path and imported when first asked for, so that listing the
    names of the losses loads no torch.
    """

    def __init__(self, kind: str, parameters: Sequence[str], builtin: Mapping[str, str]) -> None:
        self._kind = kind  # what the functions are, as the settings' key calls them
        self._parameters = parameters  # what they take, by position
        self._paths = dict(builtin)
        self._functions: dict[str, F] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Registered names, sorted."""
        return tuple(sorted(self._paths.keys() | self._functions.keys()))

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that registers a function under `name`; a taken name raises UserError."""
        if name in self.names:
            raise UserError(
                f"a name may be registered once, and this {self._kind} exists",
                value=name,
                remedy="Choose another name",
            )

        def keep(function: F) -> F:
            self._functions[name] = function
            return function

        return keep

    def problem(self, name: str) -> UserError | None:
        """Return why `name` cannot be used, None when it can. A user's own function is loaded."""
        if name in self.names:
            return None
        try:
            self.load(name)
        except UserError as error:
            return error
        return None

    def load(self, name: str) -> F:
        """Return the function registered as `name`, or a user's own by import path or file.

        Raises UserError when there is none, or when it does not take the hook's parameters.
        """
        if name in self._functions:
            return self._functions[name]
        key = f"algorithm.{self._kind}"
        if name not in self._paths and not is_own(name):
            near = nearest(name, self.names)
            hint = f"Did you mean {near!r}? " if near else ""
            remedy = (
                f"{hint}Choose one of {', '.join(self.names)}; yours is module:function or file.py:function"
            )
            raise UserError(f"must be a known {self._kind}", value=name, remedy=remedy, key=key)
        try:
            return cast("F", load_function(self._paths.get(name, name), self._parameters))
        except HookError as error:
            error.key = key
            raise
