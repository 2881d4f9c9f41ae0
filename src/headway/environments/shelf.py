"""Where a parked rollout is kept for another life: its partial payload and its sandbox's snapshots.

For environments that declare `replay` or `snapshot`; one that declares `restart` leaves nothing here and
begins anew. Snapshots lie in a store beside the payloads, each known by its run, rollout, attempt and turn,
and by the newest and oldest policy version whose calls shaped the sandbox. Only the newest one of a rollout
is kept, and none after its end: a record whose snapshot is gone is told in full instead.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

from headway.core.errors import SandboxError
from headway.environments.partial import read_partial, write_partial

if TYPE_CHECKING:
    from pathlib import Path

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
        self._store = payload_dir / "snapshots"
        self._payloads = payloads
        self._resume = resume
        self._provider = provider
        self._snapshot = ""  # digest of the newest

    def connect(self, chat: Conversation, lease: SandboxLease) -> None:
        """Let conversation and sandbox share one record, an earlier life's where the command names it.

        Raises PayloadError when that cannot be read.
        """
        if self._command.partial and self._resume != "restart":
            chat.rerun(read_partial(self._payload_dir, self._command.partial))
            self._snapshot = chat.record.snapshot
        chat.record.kept = self._resume != "restart"
        lease.record, lease.store = chat.record, self._store
        lease.turn = lambda: chat.turns.num_answers - 1
        lease.answering_s = lambda: chat.answering_s
        chat.generation.before_answer, chat.calling = lease.revive, lease.outside_call
        if chat.record.kept:
            chat.payload = lambda: self._written(chat, lease)

    async def _written(self, chat: Conversation, lease: SandboxLease) -> str:
        """Write what another life needs and return its reference."""
        if self._resume == "snapshot":
            with contextlib.suppress(SandboxError):  # the calls alone give the same state
                if await lease.snapshot(self._labels(chat)) and chat.record.snapshot != self._snapshot:
                    await self.clear()
                    self._snapshot = chat.record.snapshot
        return write_partial(chat.partial(), self._command.rollout, self._task.id, self._payloads)

    def _labels(self, chat: Conversation) -> dict[str, str]:
        """Return what a snapshot is known by, beside its run and rollout."""
        turns = chat.partial().turns
        versions = sorted(span[:2] for turn in turns for span in turn.spans) or [(0, 0)]
        newest, oldest = (f"{lineage}.{number}" for lineage, number in (versions[-1], versions[0]))
        labels = {"attempt": str(self._command.attempt), "turn": str(len(turns))}
        return labels | {"policy": self._command.policy, "version": newest, "oldest_version": oldest}

    async def clear(self) -> None:
        """Remove the rollout's snapshot."""
        if self._snapshot:
            with contextlib.suppress(OSError):  # it lies in the run's own folder and harms nobody
                await self._provider.discard(self._store, self._snapshot)
            self._snapshot = ""
