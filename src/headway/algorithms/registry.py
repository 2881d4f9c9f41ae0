"""Find a hook by its name or by the import path of a user's own function."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headway.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F")


class Registry(Generic[F]):
    """Functions of one kind, by name.

    Built-in functions are listed by import path and imported when first asked for, so that listing the
    names of the losses loads no torch.
    """

    def __init__(self, kind: str, builtin: Mapping[str, str]) -> None:
        self._kind = kind  # what the functions are, as the settings' key calls them
        self._paths = dict(builtin)
        self._functions: dict[str, F] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Registered names, sorted."""
        return tuple(sorted(self._paths.keys() | self._functions.keys()))

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that registers a function under `name`; a taken name raises UserError."""
        if name in self.names:
            raise UserError(f"a name may be registered once, and this {self._kind} exists", value=name)

        def keep(function: F) -> F:
            self._functions[name] = function
            return function

        return keep

    def unknown(self, name: str) -> str:
        """Return why `name` cannot be loaded, as a remedy; empty when it is registered or an import path."""
        if ":" in name or name in self.names:
            return ""
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return f"{hint}Choose one of {', '.join(self.names)}, or give an import path, module:function"

    def load(self, name: str) -> F:
        """Return the function registered as `name`, or found at the import path `module:function`.

        Raises UserError when there is none.
        """
        if name in self._functions:
            return self._functions[name]
        if remedy := self.unknown(name):
            rule = f"{self._kind} must be a registered name or an import path"
            raise UserError(rule, value=name, remedy=remedy, key=f"algorithm.{self._kind}")
        return cast("F", _import(self._paths.get(name, name), f"algorithm.{self._kind}"))


def _import(path: str, key: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        rule = f"the module of an import path must import; it raised {type(error).__name__}: {error}"
        remedy = "Start headway where Python finds the module, or install it"
        raise UserError(rule, value=path, remedy=remedy, key=key) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        rule = f"module {module_name} must have a function {attribute!r}"
        raise UserError(rule, value=path, remedy="Write module:function", key=key)
    return function
