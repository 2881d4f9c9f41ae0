"""Following a journal: whatever happens to its end, its records come once and in order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.telemetry.conftest import make_header, whole_run

from headway.core.errors import JournalError
from headway.telemetry.follow import Follower
from headway.telemetry.journal import read_journal, truncate_torn_tail


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "journal.jsonl"
    whole_run().write(path, make_header())
    return path.read_bytes(), list(read_journal(path)), read_journal(path).header


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.floats(0, 1), max_size=12), most=st.integers(1, 5000))
def test_a_journal_written_in_any_pieces_is_read_once_and_in_order(whole, tmp_path_factory, cuts, most):
    data, records, header = whole
    path = tmp_path_factory.mktemp("follow") / "journal.jsonl"
    follower, found, written = Follower(path), [], 0
    assert follower.poll() == []
    for end in [*sorted(int(cut * len(data)) for cut in cuts), len(data)]:
        with path.open("ab") as file:
            file.write(data[written:end])
        written = end
        found += follower.poll(most)
    while not follower.caught_up:
        found += follower.poll(most)
    assert found == records
    assert follower.header == header
    assert follower.read_fraction == 1.0
    assert follower.poll() == []


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1), garbage=st.sampled_from([b"", b"\0\0\0", b'{"seq":3\n', b"null\n"]))
def test_a_torn_end_that_a_resume_cuts_off_was_never_read(whole, tmp_path_factory, share, garbage):
    data, records, _ = whole
    first = data.index(b"\n") + 1
    path = tmp_path_factory.mktemp("torn") / "journal.jsonl"
    died = first + int(share * (len(data) - first))
    good = data.rindex(b"\n", 0, died) + 1
    path.write_bytes(data[: good if garbage else died] + garbage)
    follower = Follower(path.parent)
    found = follower.poll() + follower.poll()
    assert found == records[: data[:good].count(b"\n") - 1]
    truncate_torn_tail(path)
    with path.open("ab") as file:
        file.write(data[good:])
    found += follower.poll() + follower.poll()
    assert found == records


def test_the_header_comes_before_the_first_record(whole, tmp_path):
    data, records, _ = whole
    (tmp_path / "journal.jsonl").write_bytes(data)
    follower = Follower(tmp_path)
    assert (follower.poll(), follower.header is not None, follower.caught_up) == ([], True, False)
    assert follower.poll() == records
    assert follower.caught_up


def test_damage_before_the_end_is_an_error_with_its_line(whole, tmp_path):
    lines = whole[0].splitlines(keepends=True)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join([*lines[:4], b"damage\n"]))
    follower = Follower(path)
    assert len(follower.poll() + follower.poll()) == 3
    with path.open("ab") as file:
        file.write(lines[5])
    with pytest.raises(JournalError, match="line 5 is not a JSON object"):
        follower.poll()


def test_a_journal_that_became_shorter_is_an_error(whole, tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(whole[0])
    follower = Follower(path)
    follower.poll()
    follower.poll()
    path.write_bytes(whole[0].splitlines(keepends=True)[0])
    with pytest.raises(JournalError, match="became shorter"):
        follower.poll()


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"t":1.0,"stat":5}', b'{"t":1.0,"stat":{"a":"b"}}'])
def test_a_line_that_is_no_record_is_damage(whole, tmp_path, line):
    lines = whole[0].splitlines(keepends=True)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join([*lines[:4], line + b"\n", *lines[5:]]))
    with pytest.raises(JournalError, match="line 5"):
        list(read_journal(path))
    follower = Follower(path)
    follower.poll()
    with pytest.raises(JournalError, match="line 5"):
        follower.poll()
