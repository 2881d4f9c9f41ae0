"""Which file of the payload store a rollout's payload goes to: its segment, which can go as a whole.

A segment holds what one worker writes, in one life of the run, for SEGMENT_GROUPS neighbouring groups. The
rollout's id alone says which: whether a segment may go is a question about groups and needs no look inside.

Kinds: `train` and `eval`; `sample`, the groups that are kept for browsing whatever happens to the others; and
`parked`, what another life needs to go on with an unfinished rollout.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

SEGMENT_GROUPS = 16

Kind = Literal["train", "sample", "eval", "parked"]

_GROUP = re.compile(r"([te])(\d+)(?:[~.].*)?")
_FILE = re.compile(r"(?P<writer>.+)\.(?P<kind>train|sample|eval|parked)-(?P<series>[te])(?P<index>\d+)\.bin")


class Segment(NamedTuple):
    """A file of the payload store."""

    name: str
    writer: str  # worker and life
    kind: Kind
    is_eval: bool  # whether its groups are an evaluation's
    place: int  # its groups are numbered from place * SEGMENT_GROUPS


def group_of(name: str) -> tuple[bool, int] | None:
    """Return (whether it is an evaluation's, number) of a group's or rollout's id, None for any other name.

    A group that is taken again, `t000017~1`, and late members, `t000006~late`, have their first group's.
    """
    match = _GROUP.fullmatch(name)
    return None if match is None else (match[1] == "e", int(match[2]))


def segment_of(file: str) -> Segment | None:
    """Return what a file's name says, None when it is no segment."""
    match = _FILE.fullmatch(file)
    if match is None:
        return None
    kind: Kind = match["kind"]  # pyright: ignore[reportAssignmentType]
    return Segment(file, match["writer"], kind, match["series"] == "e", int(match["index"]))


def segments(writer: str, sample_groups: int = 0) -> Callable[[str, bool], str]:
    """Return a function of (rollout, whether it is parked) that gives the file for its payload.

    Args:
        writer: worker and life; no two processes that live at once have the same.
        sample_groups: every so many groups one goes to the samples, 0 for none.
    """

    def file(rollout: str, parked: bool) -> str:
        group = group_of(rollout)
        if group is None:
            return f"{writer}.bin"
        is_eval, number = group
        kind: Kind = "eval" if is_eval else "train"
        if parked:
            kind = "parked"
        elif not is_eval and sample_groups and number % sample_groups == 0:
            kind = "sample"
        return f"{writer}.{kind}-{'e' if is_eval else 't'}{number // SEGMENT_GROUPS:06d}.bin"

    return file
