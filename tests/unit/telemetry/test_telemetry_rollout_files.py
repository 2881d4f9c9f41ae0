"""JSONL and Parquet of rollouts: what is read back is the payload to the bit; a kill leaves a whole file."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.unit.telemetry.rollout_parts import payload, record

from headway.core.errors import UserError
from headway.telemetry import rollout_files
from headway.telemetry.rollout_files import write_jsonl, write_parquet
from headway.telemetry.rollout_rows import COLUMNS, rows
from headway.telemetry.whole_file import whole_file

ROOT = Path(__file__).parents[3]
FORMATS = {
    "jsonl": (write_jsonl, lambda file: [json.loads(line) for line in file.read_text().splitlines()]),
    "parquet": (write_parquet, lambda file: pq.read_table(file).to_pylist(maps_as_pydicts="strict")),
}


def floats(values):
    return struct.pack(f"{len(values)}f", *values)


def all_rows():
    yield from rows("quickstart", record(), payload())
    yield from rows("quickstart", record(rollout="t0.1", fate=None, latency=None, weight=None), "it runs")


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_read_back_is_the_payload_to_the_bit(tmp_path, kind):
    write, read = FORMATS[kind]
    assert write(all_rows(), str(tmp_path / "file")) == 3
    found = read(tmp_path / "file")
    assert [list(row) for row in found] == [[column.name for column in COLUMNS]] * 3
    for row, sample in zip(found, payload().samples, strict=False):
        assert row["token_ids"] == list(sample.token_ids)
        assert row["trainable"] == list(sample.trainable)
        assert floats(row["logprobs"]) == sample.logprobs.tobytes()
        assert [tuple(span.values()) for span in row["spans"]] == sample.spans
        assert [tuple(turn.values()) for turn in row["turns"]] == sample.turns
        assert row["temperature"] == sample.temperature
    first, second, third = found
    assert (first["sample"], second["sample"], third["sample"]) == (0, 1, None)
    assert (first["num_samples"], third["num_samples"], third["missing"]) == (2, 0, "it runs")
    assert first["advantages"] == [0, 0, 1, 1, 0, 2, 2]
    assert first["messages"] == [
        {"role": "user", "content": "5+3="},
        {"role": "assistant", "content": "8"},
    ]
    outcome = first["outcome"]
    assert (outcome if kind == "jsonl" else json.loads(outcome)) == {"answer": "8"}
    assert first["reward_metrics"] == {"near": 0.25}
    assert first["failures"] == [
        {
            "attempt": 0,
            "owner": "environment",
            "cause": "exception",
            "message": "it broke",
            "retried": True,
        }
    ]
    assert first["masked_versions"] == [{"lineage": 0, "number": 3}]
    assert (first["run"], first["state"], first["step"], first["queue_s"]) == ("quickstart", "trained", 6, 1)
    assert (third["token_ids"], third["temperature"], third["queue_s"]) == ([], None, None)


def test_both_files_say_the_same(tmp_path):
    found = []
    for kind, (write, read) in FORMATS.items():
        write(all_rows(), str(tmp_path / kind))
        found.append(read(tmp_path / kind))
    for row in found[1]:
        row["outcome"] = json.loads(row["outcome"])
    for one, other in zip(*found, strict=True):
        assert {**one, "logprobs": floats(one["logprobs"])} == {
            **other,
            "logprobs": floats(other["logprobs"]),
        }


@pytest.mark.parametrize("kind", FORMATS)
def test_text_that_no_file_can_hold_is_escaped(tmp_path, kind):
    write, read = FORMATS[kind]
    what = payload(text="half \ud83d\x00 nothing\n")
    write(rows("run", record(reasons=("\udc80",)), what), str(tmp_path / "file"))
    content = read(tmp_path / "file")[0]["messages"][0]["content"]
    assert content in ("half \ud83d\x00 nothing\n", "half \\ud83d\x00 nothing\n")


def test_rows_are_written_in_groups_as_they_come(tmp_path, monkeypatch):
    """No more rows are held than a row group has, so that memory does not grow with the run."""
    monkeypatch.setattr(rollout_files, "_ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(rollout_files, "_ROW_GROUP_TOKENS", 1 << 20)
    write_parquet((row for _ in range(5) for row in rows("run", record(), payload())), str(tmp_path / "a"))
    monkeypatch.setattr(rollout_files, "_ROW_GROUP_TOKENS", 10)
    write_parquet((row for _ in range(5) for row in rows("run", record(), payload())), str(tmp_path / "b"))
    sizes = [pq.ParquetFile(tmp_path / name).metadata for name in "ab"]
    assert [[meta.row_group(i).num_rows for i in range(meta.num_row_groups)] for meta in sizes] == [
        [4, 4, 2],
        [2, 2, 2, 2, 2],
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_fault_leaves_the_old_file(tmp_path, kind):
    def broken():
        yield from all_rows()
        raise RuntimeError("the run's disk is gone")

    write, _ = FORMATS[kind]
    (tmp_path / "file").write_text("old")
    with pytest.raises(RuntimeError, match="disk is gone"):
        write(broken(), str(tmp_path / "file"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("kind", FORMATS)
def test_killed_while_writing_leaves_the_old_file(tmp_path, kind):
    """kill -9 in the middle: the old file is whole, and the next writer clears what was left."""
    file = tmp_path / "file"
    file.write_text("old")
    program = f"""
        import os, signal
        from headway.telemetry.rollout_files import write_{kind}
        from tests.unit.telemetry.test_telemetry_rollout_files import all_rows
        def forever():
            while True:
                yield from all_rows()
                if os.path.getsize("{file}.partial") > 100_000:
                    os.kill(os.getpid(), signal.SIGKILL)
        write_{kind}(forever(), "{file}")
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert file.read_text() == "old"
    write, read = FORMATS[kind]
    write(all_rows(), str(file))
    assert len(read(file)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_is_bad_input(tmp_path):
    for name in ("nowhere/file", "."):
        with pytest.raises(UserError, match=r"cannot be written: .* Name a file"):
            write_jsonl(all_rows(), str(tmp_path / name))
    with whole_file(tmp_path / "fine") as partial:
        partial.write_text("new")
    assert (tmp_path / "fine").read_text() == "new"


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'headway\[parquet\]'"):
        write_parquet(all_rows(), str(tmp_path / "file"))
    assert not list(tmp_path.iterdir())


def test_the_docs_list_every_column():
    page = (ROOT / "docs" / "rollouts.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)
    assert listed == [tuple(column) for column in COLUMNS]


def test_two_that_write_one_file_at_once_do_not_mix(tmp_path):
    with whole_file(tmp_path / "file") as partial:
        partial.write_text("first")
        with pytest.raises(UserError, match=r"another process is writing the file .*file\. Wait"):
            write_jsonl(all_rows(), str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_never_takes_the_place_of_a_device_or_a_pipe(tmp_path):
    """Who may write to /dev could replace /dev/null, for everyone on the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match="cannot be written: it is a device or a pipe"):
            write_jsonl(all_rows(), str(tmp_path / name))
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_behind_a_link_the_file_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "second"):
        with whole_file(tmp_path / "link") as partial:
            partial.write_text(text)
        assert (tmp_path / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
