"""The payload store's segments, and what a full disk looks like."""

import errno
import os
import resource
from array import array

import pytest

from headway.core.errors import DiskFullError, HeadwayError
from headway.core.payload import Payload, PayloadWriter, read_payload
from headway.core.records import FLAGS, FLOATS, TOKENS, TrainingSample, VersionSpan
from headway.core.segments import SEGMENT_GROUPS, Segment, group_of, segment_of, segments
from headway.core.storage import disk_full, is_full, no_room, size


def payload(rollout, num_tokens=4):
    ids = array(TOKENS, range(num_tokens))
    zeros = array(FLAGS, [0] * num_tokens), array(FLOATS, [0.0] * num_tokens)
    return Payload(rollout, "train/0", [TrainingSample(ids, *zeros, [VersionSpan(0, 0, 0)], 1.0)], {})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("t000017", (False, 17)),
        ("t000017.3", (False, 17)),
        ("t000017~1.3", (False, 17)),
        ("t000006~late", (False, 6)),
        ("e000078.0", (True, 78)),
        ("r1", None),
    ],
)
def test_a_rollout_s_id_names_its_group(name, found):
    assert group_of(name) == found


def test_a_payload_s_file_follows_from_its_rollout_s_id():
    file = segments("environment0.2", sample_groups=4)
    assert [file(f"t{number:06d}.0", False) for number in (3, 4, SEGMENT_GROUPS)] == [
        "environment0.2.train-t000000.bin",
        "environment0.2.sample-t000000.bin",
        "environment0.2.sample-t000001.bin",
    ]
    assert file("t000003~1.0", False) == "environment0.2.train-t000000.bin"
    assert file("t000004.0", True) == "environment0.2.parked-t000000.bin"
    assert file("e000035.0", False) == "environment0.2.eval-e000002.bin"
    assert file("mine", False) == "environment0.2.bin"
    name = "environment0.2.eval-e000002.bin"
    assert segment_of(name) == Segment(name, "environment0.2", "eval", True, 2)
    assert segment_of("environment0.2.bin") is None


def test_payloads_of_many_segments_are_all_found_again(tmp_path):
    writer = PayloadWriter(tmp_path, "w.bin", segments("w.0"))
    written = {}
    for number in range(0, 40 * SEGMENT_GROUPS, SEGMENT_GROUPS):  # more files than are held open
        for rollout in (f"t{number:06d}.0", f"t{number:06d}.1"):
            written[rollout] = writer.append(payload(rollout))
        writer.sync()
    late = writer.append(payload("t000000.2"))
    assert late.startswith("w.0.train-t000000.bin:")
    writer.close()
    assert len(list(tmp_path.iterdir())) == 40
    for rollout, reference in {**written, "t000000.2": late}.items():
        assert read_payload(tmp_path, reference).rollout == rollout


def test_a_payload_that_has_no_room_leaves_nothing_and_the_next_one_is_whole(small_disk):
    writer = PayloadWriter(small_disk, "w")
    first = writer.append(payload("r1"))
    with pytest.raises(DiskFullError, match=r"no room for .*/disk/w: it needs 1\.8 MB, and 1\.0 MB are free"):
        writer.append(payload("r2", 200_000))
    assert (small_disk / "w").stat().st_size == int(first.split(":")[2])
    third = writer.append(payload("r3"))
    writer.close()
    assert [read_payload(small_disk, ref).rollout for ref in (first, third)] == ["r1", "r3"]


def test_a_limit_on_file_sizes_is_a_full_disk_with_a_remedy_of_its_own(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = PayloadWriter(tmp_path, "w")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DiskFullError, match="ulimit -f"):
            writer.append(payload("r1", 1000))
        told = no_room(tmp_path, 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.close()
    assert told is not None
    assert told.errno == errno.EFBIG
    assert no_room(tmp_path, 2000) is None
    assert os.listdir(tmp_path) == ["w"]


def test_what_counts_as_full():
    assert is_full(OSError(errno.ENOSPC, "x"))
    assert is_full(OSError(errno.EDQUOT, "x"))
    assert not is_full(OSError(errno.EIO, "x"))
    assert not is_full(RuntimeError("No space left on device"))


def test_the_error_says_file_bytes_and_remedy(tmp_path):
    error = disk_full(tmp_path / "absent" / "file", 5_200_000, OSError(errno.ENOSPC, "x"))
    assert f"no room for {tmp_path}/absent/file: it needs 5.2 MB, and " in str(error)
    assert "headway resume RUN" in str(error)


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (318e6, "318 MB"),
        (1.24e9, "1.2 GB"),
        (999.7e6, "1.0 GB"),
    ],
)
def test_sizes_in_words(num_bytes, words):
    assert size(num_bytes) == words


def test_a_payload_that_retention_removed_says_so(tmp_path):
    with pytest.raises(HeadwayError, match=r"its file is gone.*retention"):
        read_payload(tmp_path, "w.0.train-t000000.bin:0:10")
