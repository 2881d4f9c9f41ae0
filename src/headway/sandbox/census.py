"""What is on this machine: every sandbox that a process of this user made and not ended, and whose it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.clock import wall_time
from headway.sandbox.leases import Book, read_books
from headway.sandbox.pools import WITH_THEIR_OWNER

if TYPE_CHECKING:
    from pathlib import Path

LEFT_OVER = "left over"


@dataclass(frozen=True, slots=True)
class Seen:
    """One sandbox."""

    sandbox: str  # as its user knows it
    provider_id: str  # as its provider does
    run: str
    provider: str
    image: str  # "" for the default
    state: str  # starting, ready, live; silent: its owner lives and renews nothing; left over, gone
    age_s: float  # since its creation began
    owner_pid: int
    owner_alive: bool
    owner_command: str
    expires_in_s: float  # until its lease would have to be renewed; below 0 it should have been


def census(folder: Path | None = None) -> list[Seen]:
    """Return what there is, the oldest owner first."""
    now = wall_time()
    return [seen for book in read_books(folder) for seen in _of(book, now)]


def _of(book: Book, now: float) -> list[Seen]:
    owner = book.owner
    expires_in_s = book.expires_s - now
    return [
        Seen(
            sandbox=lease.name or lease.id,
            provider_id=lease.id,
            run=owner.run,
            provider=owner.provider,
            image=lease.labels.get("image", "") or str(owner.settings.get("image", "")),
            state=_state(book, lease.state, expires_in_s),
            age_s=max(0.0, now - lease.created_s),
            owner_pid=owner.pid,
            owner_alive=book.alive,
            owner_command=owner.command,
            expires_in_s=expires_in_s,
        )
        for lease in book.leases.values()
    ]


def _state(book: Book, state: str, expires_in_s: float) -> str:
    if not book.alive:
        return "gone" if book.owner.provider in WITH_THEIR_OWNER else LEFT_OVER
    return "silent" if expires_in_s < 0 else state


def is_life_of(run: str, name: str) -> bool:
    """Say whether `run` labels a life of the run of this name, or is that label."""
    return run == name or re.fullmatch(re.escape(name) + r"-\d+-\d+", run) is not None
