"""Which sandboxes a provider has made and not ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from headway.core.errors import SandboxError


class Labelled(Protocol):
    """What a roster looks at."""

    labels: dict[str, str]

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        ...


S = TypeVar("S", bound=Labelled)


class Roster(Generic[S]):
    """Live sandboxes by id, no more than `max_live` of them."""

    def __init__(self, max_live: int) -> None:
        self._max_live = max_live
        self._live: dict[str, S] = {}

    def add(self, sandbox: S) -> None:
        """Take up a new sandbox. Raises SandboxError for an id that is taken, or one too many."""
        if sandbox.id in self._live:
            raise SandboxError("a sandbox id must be new", value=sandbox.id)
        if len(self._live) >= self._max_live:
            raise SandboxError(
                "sandboxes that live at once must not exceed sandbox.max_live",
                value=len(self._live) + 1,
                remedy=f"max_live is {self._max_live}; whoever grants sandboxes must keep to it",
            )
        self._live[sandbox.id] = sandbox

    def get(self, sandbox_id: str) -> S | None:
        """Return a live sandbox, None when there is none of this id."""
        return self._live.get(sandbox_id)

    def wanted(self, sandbox_id: str) -> S:
        """Return a live sandbox. Raises SandboxError when there is none of this id."""
        sandbox = self._live.get(sandbox_id)
        if sandbox is None:
            raise SandboxError("there must be a live sandbox of this id", value=sandbox_id)
        return sandbox

    def forget(self, sandbox_id: str) -> None:
        """Leave out a sandbox that has ended."""
        self._live.pop(sandbox_id, None)

    def having(self, labels: Mapping[str, str]) -> list[S]:
        """Return live sandboxes whose labels include these."""
        return [
            sandbox
            for sandbox in self._live.values()
            if all(sandbox.labels.get(key) == value for key, value in labels.items())
        ]
