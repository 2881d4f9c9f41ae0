"""Kept ids are joined over turns and requests, and leave with tokens that are not trained."""

from array import array

import pytest

from headway.core.kept import Kept, grown
from headway.core.records import KEPT_COUNTS, KEPT_IDS, Stream


def kept(*rows):
    found = Kept()
    for row in rows:
        found.append(row)
    return found


def test_the_streams_hold_counts_and_ids_one_after_the_other():
    streams = kept([4, 7], [], [5]).streams()
    counts, ids = streams[KEPT_COUNTS], streams[KEPT_IDS]
    assert (counts.axis, counts.dtype, counts.shape) == ("sampled", "int32", (3,))
    assert (ids.axis, ids.dtype, ids.shape) == ("kept", "int32", (3,))
    assert array("i", counts.data).tolist() == [2, 0, 1]
    assert array("i", ids.data).tolist() == [4, 7, 5]
    assert Kept.of(streams) == kept([4, 7], [], [5])
    assert Kept.of({}) is None


def test_what_was_not_truncated_counts_as_the_whole_vocabulary():
    assert grown(None, 2, {}, 3) is None
    assert grown(None, 2, kept([1]).streams(), 1) == kept([], [], [1])
    assert grown(kept([1]), 1, {}, 2) == kept([1], [], [])
    with pytest.raises(ValueError, match="a count for each of 2 sampled tokens"):
        grown(None, 0, kept([1]).streams(), 2)


def test_tokens_leave_with_their_ids():
    assert kept([1, 2], [3], [], [4]).only([True, False, True, True]) == kept([1, 2], [], [4])


@pytest.mark.parametrize(
    "streams",
    [
        {KEPT_COUNTS: kept([1]).streams()[KEPT_COUNTS]},
        kept([1]).streams() | {KEPT_IDS: Stream("kept", "int32", (0,), b"")},
        kept([1]).streams() | {KEPT_IDS: Stream("kept", "int64", (1,), b"\0" * 8)},
        kept([]).streams() | {KEPT_COUNTS: Stream("sampled", "int32", (2,), array("i", [-1, 1]).tobytes())},
    ],
)
def test_streams_that_do_not_belong_together_are_refused(streams):
    with pytest.raises(ValueError, match=KEPT_COUNTS):
        Kept.of(streams)
