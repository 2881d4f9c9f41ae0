"""Where a parked rollout is kept for another life: its partial payload and its sandbox's snapshots.

For environments that declare `replay` or `snapshot`; one that declares `restart` leaves nothing here and
begins anew. Snapshots lie beside the payloads. Only the newest one of a rollout is kept, and none after its
end: a record whose snapshot is gone is told in full instead.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from headway.core.errors import SandboxError
from headway.environments.partial import read_partial, write_partial

if TYPE_CHECKING:
    from headway.core.commands import StartRollout
    from headway.core.payload import PayloadWriter
    from headway.core.protocols import SandboxProvider
    from headway.core.records import Task
    from headway.environments.conversation import Conversation
    from headway.environments.lease import SandboxLease


class Shelf:
    """One attempt's place."""

    def __init__(
        self,
        command: StartRollout,
        task: Task,
        payload_dir: Path,
        payloads: PayloadWriter,
        resume: Literal["replay", "snapshot", "restart"],
        provider: SandboxProvider,
    ) -> None:
        self._command = command
        self._task = task
        self._payload_dir = payload_dir
        self._folder = payload_dir / "snapshots"
        self._payloads = payloads
        self._resume = resume
        self._provider = provider
        self._num_snapshots = 0
        self._snapshot: Path | None = None  # the newest

    def connect(self, chat: Conversation, lease: SandboxLease) -> None:
        """Let conversation and sandbox share one record, an earlier life's where the command names it.

        Raises PayloadError when that cannot be read.
        """
        if self._command.partial and self._resume != "restart":
            chat.rerun(read_partial(self._payload_dir, self._command.partial))
            if chat.record.snapshot:  # the run's folder may have moved since
                self._snapshot = self._folder / Path(chat.record.snapshot).name
                chat.record.snapshot = str(self._snapshot)
        chat.record.kept = self._resume != "restart"
        lease.record = chat.record
        lease.turn = lambda: chat.num_answers - 1
        chat.generation.before_answer = lease.revive
        if chat.record.kept:
            chat.payload = lambda: self._written(chat, lease)

    async def _written(self, chat: Conversation, lease: SandboxLease) -> str:
        """Write what another life needs and return its reference."""
        if self._resume == "snapshot":
            path = self._folder / quote(f"{lease.id}.{self._num_snapshots}", safe="")
            self._num_snapshots += 1
            with contextlib.suppress(SandboxError):  # the calls alone give the same state
                if await lease.snapshot(path):
                    await self.clear()
                    self._snapshot = path
        return write_partial(chat.partial(), self._command.rollout, self._task.id, self._payloads)

    async def clear(self) -> None:
        """Remove the rollout's snapshot."""
        if self._snapshot is not None:
            with contextlib.suppress(OSError):  # it lies in the run's own folder and harms nobody
                await self._provider.discard(self._snapshot)
            self._snapshot = None
