"""Where a store keeps what the files of a tree hold.

    packs/<hash>    the small files of one snapshot that were nowhere yet, one after another: making a file
                    costs more than writing one
    blobs/<hash>    a large or sparse file
    places/<hash>   JSON: which packs and blobs the tree of this hash needs, and where in them its files are

A pack stays while any tree needs a part of it. So that this bounds what a store takes, a tree whose packs are
many, or mostly not its own, is packed anew: packs take at most twice what their trees hold, and a little.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.sandbox.blobs import Held, is_whole, put_large
from headway.sandbox.trees import write_all

_MAX_PACKS = 32
_SLACK_BYTES = 1 << 20
Place = tuple[str, int]  # a pack and an offset


class Packer:
    """What one snapshot adds; a draft, until `finish`."""

    def __init__(self, store: Path, draft: Path, known: Mapping[str, Place]) -> None:
        self._store = store
        self._draft = draft
        self._known = known
        self._sizes: dict[str, int] = {}  # of packs, -1 of one that is gone
        self._fd = -1
        self._added: dict[str, int] = {}  # offset in the draft by blob
        self._added_bytes = 0
        self._used: dict[str, Place] = {}  # by blob
        self._used_bytes = 0
        self._large: set[str] = set()

    def has(self, blob: str, size: int) -> bool:
        """Whether a blob is in the store; if so the tree needs it."""
        if blob in self._added or blob in self._used or blob in self._large:
            return True
        place = self._known.get(blob)
        if place is not None and self._size(place[0]) >= place[1] + size:
            self._used[blob] = place
            self._used_bytes += size
            return True
        if is_whole(self._store / "blobs" / blob, size):
            self._large.add(blob)
            return True
        return False

    def add(self, fd: int, info: os.stat_result) -> str:
        """Add what an open file holds, unless it is there; return its blob's name."""
        held = Held(fd, info)
        if self.has(held.name, held.size):
            return held.name
        if held.data is None:
            self._add_large(held)
            self._large.add(held.name)
        else:
            if self._fd < 0:
                self._fd = _new(self._draft)
            write_all(self._fd, held.data, self._added_bytes)
            self._added[held.name] = self._added_bytes
            self._added_bytes += held.size
        return held.name

    @property
    def wasteful(self) -> bool:
        """Whether too much of what the tree needs is not its own."""
        packs = {pack for pack, _ in self._used.values()}
        num_bytes = sum(map(self._size, packs))
        return len(packs) > _MAX_PACKS or num_bytes > 2 * self._used_bytes + self._added_bytes + _SLACK_BYTES

    def finish(self) -> dict[str, Any]:
        """Give the draft its name and return the tree's places, as JSON values."""
        at = dict(self._used)
        if self._fd >= 0:
            name = hashlib.sha256(repr(self._added).encode()).hexdigest()
            self._draft.rename(self._store / "packs" / name)
            at |= {blob: (name, offset) for blob, offset in self._added.items()}
        packs = sorted({pack for pack, _ in at.values()})
        numbers = {pack: number for number, pack in enumerate(packs)}
        places = {blob: [numbers[pack], offset] for blob, (pack, offset) in at.items()}
        return {"packs": packs, "at": places, "large": sorted(self._large)}

    def close(self) -> None:
        """Remove the draft, unless it has a name."""
        if self._fd >= 0:
            os.close(self._fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._draft)

    def _size(self, pack: str) -> int:
        if pack not in self._sizes:
            try:
                self._sizes[pack] = os.stat(self._store / "packs" / pack).st_size
            except FileNotFoundError:
                self._sizes[pack] = -1
        return self._sizes[pack]

    def _add_large(self, held: Held) -> None:
        draft = self._draft.with_name(self._draft.name + ".large")
        fd = _new(draft)
        try:
            held.write(fd)
            draft.rename(self._store / "blobs" / held.name)
        except BaseException:
            os.unlink(draft)
            raise
        finally:
            os.close(fd)


class Unpacker:
    """Reads what the files of one tree hold."""

    def __init__(self, store: Path, places: Mapping[str, Any]) -> None:
        self._store = store
        self._at = places_of(places)
        self._open: dict[str, int] = {}

    def put(self, blob: str, size: int, target: int) -> None:
        """Write a blob to an empty file.

        Raises ValueError when it does not hold what its name says.
        """
        place = self._at.get(blob)
        if place is None:
            put_large(self._store / "blobs" / blob, size, target)
            return
        pack, offset = place
        if pack not in self._open:
            path = self._store / "packs" / pack
            self._open[pack] = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        data = os.pread(self._open[pack], size, offset)
        if hashlib.sha256(data).hexdigest() != blob:
            raise ValueError(blob)
        write_all(target, data, 0)

    def close(self) -> None:
        """Close the packs."""
        for fd in self._open.values():
            os.close(fd)


def places_of(plain: Mapping[str, Any]) -> dict[str, Place]:
    """Return where the small blobs of a tree are."""
    packs: list[str] = plain["packs"]
    return {blob: (packs[number], offset) for blob, (number, offset) in plain["at"].items()}


def _new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
