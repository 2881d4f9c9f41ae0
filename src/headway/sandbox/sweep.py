"""Ends what dead owners left: their sandboxes, by the leases that they held.

Local sandboxes end with their owner; folders of bubblewrap and sandboxes elsewhere do not. A dead owner's
file is taken by a lock, so that several sweepers share the work and none waits for another; it is removed
when everything in it is gone, and stays for a later sweep where something could not be ended. Nothing of an
owner that lives is touched, whatever its run.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.clock import wall_time
from headway.core.errors import HeadwayError
from headway.sandbox.leases import Book, Lease, Owner, drop_drafts, read_books, taken

if TYPE_CHECKING:
    from pathlib import Path

    from headway.core.protocols import SandboxProvider

_IN_PROCESS = ("local", "bubblewrap", "unsafe-local")  # providers whose starts end with their owner
MakeProvider = Callable[[Owner], "SandboxProvider"]


@dataclass(slots=True)
class Swept:
    """What a sweep did."""

    ended: list[str] = field(default_factory=list[str])  # sandboxes that were there and are gone
    num_owners: int = 0  # dead ones of which nothing is left
    failed: dict[str, str] = field(
        default_factory=dict[str, str]
    )  # sandbox or owner -> why it is still there


async def sweep(
    make: MakeProvider,
    *,
    runs: Container[str] | None = None,
    only: Path | None = None,
    folder: Path | None = None,
) -> Swept:
    """End what dead owners left, those of these runs or all.

    Args:
        make: returns the provider that can end an owner's sandboxes.
        runs: labels of the runs, None for every one.
        only: file of one owner, None for those of all.
        folder: of the leases; the user's own by default.
    """
    drop_drafts(folder)
    swept = Swept()
    for seen in read_books(folder):
        if only not in (None, seen.path):
            continue
        if seen.alive or (runs is not None and seen.owner.run not in runs):
            continue
        with taken(seen.path) as book:
            if book is not None and await _end_all(book, make, swept):
                book.path.unlink(missing_ok=True)
                swept.num_owners += 1
    return swept


def _may_come(book: Book, lease: Lease) -> bool:
    """Say whether a start that outlives its owner may still make the sandbox.

    It may have begun when the owner was last seen: a start that fails is tried again under the same lease.
    """
    wait_s = float(book.owner.settings.get("start_timeout_s", 0.0))
    elsewhere = book.owner.provider not in _IN_PROCESS and lease.state == "starting"
    return elsewhere and wall_time() - max(lease.created_s, book.renewed_s) < wait_s


async def _end_all(book: Book, make: MakeProvider, swept: Swept) -> bool:
    """End everything of a dead owner; return whether all of it is gone."""
    num_failed = len(swept.failed)
    try:
        provider = make(book.owner) if book.leases else None
    except HeadwayError as error:
        swept.failed[f"process {book.owner.pid}"] = str(error)
        return False
    for lease in book.leases.values():
        assert provider is not None
        try:
            if await provider.end(lease.id, lease.labels):
                swept.ended.append(lease.name or lease.id)
            elif _may_come(book, lease):
                swept.failed[lease.name or lease.id] = "what was begun elsewhere may still come to be"
        except (HeadwayError, OSError) as error:
            swept.failed[lease.name or lease.id] = str(error)
    return len(swept.failed) == num_failed
