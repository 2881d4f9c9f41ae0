"""What a sandbox says to what its provider cannot do; the provider's `spawns` and `pauses` say it before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError

if TYPE_CHECKING:
    from headway.core.protocols import Polled


class WithoutSpawns:
    """A sandbox without long-lived processes."""

    async def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        output_bytes: int = 65536,
    ) -> None:
        """Raise SandboxError: there are no long-lived processes."""
        raise _cannot("keep processes between commands", name)

    async def poll(self, name: str) -> Polled:
        """Raise SandboxError: there are no long-lived processes."""
        raise _cannot("keep processes between commands", name)

    async def kill(self, name: str) -> None:
        """Raise SandboxError: there are no long-lived processes."""
        raise _cannot("keep processes between commands", name)


class WithoutPauses:
    """A sandbox that cannot stand still."""

    async def pause(self) -> None:
        """Raise SandboxError: it cannot stand still."""
        raise _cannot("stand still", None)

    async def resume(self) -> None:
        """Raise SandboxError: it cannot stand still."""
        raise _cannot("stand still", None)


def _cannot(what: str, value: object) -> SandboxError:
    return SandboxError(
        f"sandboxes of this provider cannot {what}",
        value=value,
        remedy='Use sandbox.provider = "local"',
    )
