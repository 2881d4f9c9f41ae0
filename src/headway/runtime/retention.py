"""Which payloads and snapshots of a run may go.

Invariant: a segment goes only when every rollout of its groups is settled for good, so that no resume and no
rollback to a checkpoint that is kept can ask for it, and no rollout is written to it any more. The
scheduler's state tells: it forgets a group when the oldest kept checkpoint contains it, or when it was
dropped; tasks that lost steps take again are listed in it; and groups begin in the order of their numbers.
The state must be one that survives a power cut, and everything here is a function of it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.segments import SEGMENT_GROUPS, Segment, group_of, segment_of
from headway.queue.state import ACTIVE
from headway.sandbox.files import remove_tree
from headway.sandbox.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from headway.config.retention import RetentionSettings
    from headway.queue.state import State

SNAPSHOTS = "snapshots"
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own are


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run may still ask for."""

    step: int
    segments: frozenset[tuple[bool, int]]  # (whether an evaluation's, index) with a group that may be needed
    begun: tuple[int, int]  # numbers of the next train and the next evaluation group
    writer_life: int | None  # lineage that workers write under now, None when nobody writes
    rollouts: frozenset[str]  # that may go on from a snapshot


def needs_of(state: State, *, writer_life: int | None = None, contained: int = 0) -> Needs:
    """Return what a scheduler's state may still ask for.

    Args:
        state: as it is in the journal, and the journal is synced.
        writer_life: the lineage in the names that workers write under now; None when nothing runs.
        contained: step that every checkpoint that can be gone on from contains.
    """
    needed: set[tuple[bool, int]] = set()
    rollouts: set[str] = set()
    for group in state.groups.values():
        for rollout in group.rollouts:
            if rollout.partial or (writer_life is not None and rollout.station in ACTIVE):
                rollouts.add(rollout.id)
        if group.stage == "trained" and group.step <= contained:
            continue
        if writer_life is None and group.purpose == "eval":
            continue  # an evaluation ends with its life
        needed.update(_places([group.id, *(rollout.id for rollout in group.rollouts)]))
    needed.update(_places([again.group for again in state.again]))
    begun = state.next_group, state.next_eval_group
    return Needs(state.step, frozenset(needed), begun, writer_life, frozenset(rollouts))


def _places(names: list[str]) -> set[tuple[bool, int]]:
    found = (group_of(name) for name in names)
    return {(is_eval, number // SEGMENT_GROUPS) for is_eval, number in filter(None, found)}


def spare_segments(
    folder: Path, needs: Needs, policy: RetentionSettings, ages: Mapping[int, int]
) -> list[Path]:
    """Return the segments of a payload store that the policy gives up and nobody needs.

    Args:
        folder: of the store.
        needs: of the run.
        policy: what is kept beyond that.
        ages: newest step that trained or dropped a train group, by the segment's index.
    """
    if not folder.is_dir():
        return []
    found = [segment for path in sorted(folder.iterdir()) if (segment := segment_of(path.name)) is not None]
    return [folder / s.name for s in found if not _is_kept(s, policy, needs, ages) and is_settled(s, needs)]


def is_settled(segment: Segment, needs: Needs) -> bool:
    """Whether nobody needs a segment and nothing is written to it any more."""
    if (segment.is_eval, segment.place) in needs.segments:
        return False
    if needs.writer_life is None or not segment.writer.endswith(f".{needs.writer_life}"):
        return True
    return (segment.place + 1) * SEGMENT_GROUPS <= needs.begun[segment.is_eval]


def _is_kept(segment: Segment, policy: RetentionSettings, needs: Needs, ages: Mapping[int, int]) -> bool:
    """Whether the policy keeps a segment for people to look at."""
    match segment.kind:
        case "parked":
            return False
        case "eval":
            return policy.evaluations or policy.payloads == "all"
        case "sample" if policy.sample_groups:
            return True
        case _:
            if isinstance(policy.payloads, int):
                return ages.get(segment.place, 0) > needs.step - policy.payloads
            return policy.payloads == "all"


def spare_snapshots(folder: Path, needs: Needs) -> AbstractContextManager[list[Path]]:
    """Lend the files of a payload store that only snapshots of sandboxes need that no rollout goes on from.

    Nobody takes or uses a snapshot until the end of the block.
    """
    return Store(folder / SNAPSHOTS).spare(lambda labels: labels.get("rollout") in needs.rollouts)


def size_on_disk(path: Path) -> int:
    """Return the bytes that a file or a whole folder takes; what vanishes meanwhile takes none."""
    total, folders = 0, [str(path)]
    while folders:
        here = folders.pop()
        with contextlib.suppress(OSError):
            total += os.lstat(here).st_blocks * _BLOCK_BYTES
        with contextlib.suppress(OSError), os.scandir(here) as entries:  # no folder, or gone
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
    return total


def remove(paths: list[Path]) -> int:
    """Remove segments and snapshots; return the bytes that became free."""
    freed = 0
    for path in paths:
        num_bytes = size_on_disk(path)
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
        freed += num_bytes
    return freed
