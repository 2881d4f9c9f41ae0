"""A machine that is reached only by running programs in it, and the programs that Headway runs there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headway.sandbox import inside
from headway.sandbox.layout import SANDBOX_ENV

MODEL_UID = 65534
ENVIRONMENT = SANDBOX_ENV | {"PATH": "/usr/local/bin:/usr/bin:/bin"}
TEMPORARY = ("/tmp", "/dev/shm")
_INSIDE = Path(inside.__file__).read_text(encoding="utf-8")


def program(verb: str, job: Mapping[str, object] | None = None) -> list[str]:
    """Return the command line of inside.py with a verb."""
    return ["python3", "-I", "-S", "-B", "-c", _INSIDE, verb, json.dumps(dict(job or {}))]


class Output(Protocol):
    """What takes up a stream."""

    def feed(self, data: bytes) -> None:
        """Take up a piece."""
        ...


class Machine(Protocol):
    """One machine; a provider knows how to make it. Every failure is a SandboxError."""

    drop_uid: int  # inside.py gives up root for this uid; 0 where its programs start as the model's user
    watched: bool  # whether inside.py watches the size of the work folder, which nothing else bounds
    pauses: bool

    async def make(self) -> None:
        """Make it, or leave nothing behind."""
        ...

    async def call(
        self,
        argv: Sequence[str],
        feed: AsyncIterator[bytes],
        out: Output,
        err: Output,
        *,
        own: bool = False,
    ) -> int:
        """Run a program to its end and return its exit code, 128 + n for signal n.

        Cancelling lets go of it; the program may run on. One of our `own` starts as a user whose processes
        the model's programs can neither end nor read.
        """
        ...

    async def make_room(self) -> None:
        """Let one more program start where the machine is full of processes."""
        ...

    async def hold(self, still: bool) -> None:
        """Freeze every process, or let them go on."""
        ...

    async def there(self) -> bool:
        """Say whether it still exists and runs; cheap."""
        ...

    async def end(self) -> None:
        """End it and everything in it; idempotent."""
        ...
