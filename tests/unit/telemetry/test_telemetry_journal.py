from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n
from headway.core.errors import DiskFullError, HeadwayError, JournalError, RunDirectoryError
from headway.core.events import SCHEMA_VERSION
from headway.telemetry.journal import JournalWriter, journal_path, read_journal, truncate_torn_tail
from headway.telemetry.records import Stat, encode_commands, encode_notes


def test_what_was_written_is_read_back_as_it_was(kit, tmp_path):
    script, header = kit.whole_run(), kit.header(model=kit.MODEL, usd_per_hour=3.6, lora_params=12)
    script.write(tmp_path / "journal.jsonl", header)
    journal = read_journal(tmp_path)
    assert journal.header == header
    assert list(journal) == script.records
    assert [entry.seq for entry in journal.entries()] == list(range(script.num_events))
    assert list(journal.stats()) == [record for record in script.records if isinstance(record, Stat)]


def test_every_line_is_canonical_json_and_the_header_is_first(kit, tmp_path):
    kit.whole_run().write(tmp_path / "journal.jsonl", kit.header())
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["header"]["schema"] == SCHEMA_VERSION
    for line in lines:
        assert line == json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_replay_can_compare_commands_and_notes_byte_for_byte(tmp_path, kit):
    path = tmp_path / "journal.jsonl"
    commands = [c.WakeAt(0.1 + 0.2), c.Score("g.0", 0, 1, "train/0", "p:0:1")]
    notes = [n.Warned("code", "Grüße\nzwei")]
    writer = JournalWriter(path)
    writer.write_header(kit.header())
    writer.write_event(0, 1 / 3, e.SettingChanged("queue.depth", 2), commands, notes)
    writer.close()
    (entry,) = read_journal(path).entries()
    assert entry.t == 1 / 3
    assert entry.commands_json == encode_commands(commands) == encode_commands(entry.commands)
    assert entry.notes_json == encode_notes(notes) == encode_notes(entry.notes)
    raw_line = path.read_text().splitlines()[1]
    assert f'"commands":{entry.commands_json},' in raw_line
    assert f'"event":{entry.event_json},' in raw_line


@pytest.mark.parametrize("keep", [1, 10, -1])
def test_a_torn_last_line_is_left_out_and_can_be_cut_off(kit, tmp_path, keep):
    path = tmp_path / "journal.jsonl"
    script = kit.whole_run()
    script.write(path, kit.header())
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    torn = whole[: start + keep] if keep > 0 else whole[:-1]  # -1: only the newline is missing
    path.write_bytes(torn)
    assert list(read_journal(path)) == script.records[:-1]
    assert truncate_torn_tail(path) == len(torn) - start
    assert path.read_bytes() == whole[:start]
    assert truncate_torn_tail(tmp_path) == 0
    writer = JournalWriter(path, append=True)
    last = script.records[-1]
    writer.write_event(last.seq, last.t, last.event, last.commands, last.notes)
    writer.close()
    assert path.read_bytes() == whole


def test_a_last_line_of_zero_bytes_after_a_power_cut_is_torn(kit, tmp_path):
    path = tmp_path / "journal.jsonl"
    script = kit.whole_run()
    script.write(path, kit.header())
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 64 + b"\n")
    assert list(read_journal(path)) == script.records
    assert truncate_torn_tail(path) == 65
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"seq": 1, "t":', "is not a JSON object"),
        (b"[1, 2]", "is not a JSON object"),
        (b'{"seq":1,"t":0.5,"event":{"kind":"Unheard"},"commands":[],"notes":[]}', "Unheard"),
        (b'{"seq":1,"t":0.5,"event":{"kind":"StopAsked"},"commands":[],"notes":[]}', "reason"),
        (b'{"seq":1,"t":0.5,"event":{"kind":"EvalDue"},"commands":[]}', "notes"),
    ],
)
def test_damage_in_the_middle_is_an_error_with_its_line(kit, tmp_path, line, what):
    path = tmp_path / "journal.jsonl"
    kit.whole_run().write(path, kit.header())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = line + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match="line 5") as caught:
        list(read_journal(path))
    assert what in str(caught.value)
    assert caught.value.where == f"{path}:5"


def test_another_schema_version_is_refused_with_both_versions_and_the_remedy(kit, tmp_path):
    path = tmp_path / "journal.jsonl"
    kit.whole_run().write(path, kit.header())
    text = path.read_text().replace(f'"schema":{SCHEMA_VERSION}', '"schema":99', 1)
    path.write_text(text.replace('"headway":"0.1.0"', '"headway":"9.9.9"', 1))
    with pytest.raises(JournalError) as caught:
        read_journal(path)
    message = str(caught.value)
    assert "version 99" in message
    assert f"version {SCHEMA_VERSION}" in message
    assert "9.9.9" in message
    with pytest.raises(JournalError):
        truncate_torn_tail(path)


@pytest.mark.parametrize("content", [b"", b'{"header":{"sch', b'{"header":3}\n', b'{"seq":0}\n', b"hello\n"])
def test_a_file_without_a_complete_header_is_refused(tmp_path, content):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(JournalError, match="header"):
        read_journal(path)


def test_a_directory_without_a_journal_is_not_a_run_directory(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunDirectoryError, match="not a run directory"):
            read_journal(path)
    with pytest.raises(RunDirectoryError):
        journal_path(tmp_path)


@pytest.mark.parametrize("record", [*e.EVENTS.values(), *c.COMMANDS.values(), *n.NOTES.values()])
def test_no_record_has_a_field_that_hides_its_kind(record):
    assert "kind" not in record.__dataclass_fields__


def test_a_new_journal_never_replaces_an_old_one(tmp_path):
    path = tmp_path / "journal.jsonl"
    JournalWriter(path).close()
    with pytest.raises(RunDirectoryError, match="exists already"):
        JournalWriter(path)
    with pytest.raises(RunDirectoryError, match="cannot be opened"):
        JournalWriter(tmp_path / "missing" / "journal.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error_and_nothing_more_is_written(kit, tmp_path):
    path = tmp_path / "journal.jsonl"
    path.symlink_to("/dev/full")
    writer = JournalWriter(path, append=True)
    with pytest.raises(DiskFullError, match="it needs 73 bytes") as caught:
        writer.write_event(0, 0.0, e.RunStarted(), [], [])
    assert os.strerror(errno.ENOSPC) in str(caught.value)
    assert "headway resume" in str(caught.value)
    with pytest.raises(HeadwayError, match="takes no more records"):
        writer.write_stat(0.0, {})
    writer.close()
    writer.close()


@pytest.mark.parametrize("append", [False, True])
def test_a_record_that_has_no_room_is_taken_back_and_the_next_one_is_whole(kit, small_disk, append):
    path = small_disk / "journal.jsonl"
    if append:
        path.touch()
    writer = JournalWriter(path, append=append)
    writer.write_header(kit.header())
    writer.write_stat(1.0, {"driver_cpu_s": 0.5})
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free)
    before = path.read_bytes()
    with pytest.raises(DiskFullError):
        writer.write_stat(2.0, {f"a long name {number}": 1.0 for number in range(500)})
    assert path.read_bytes() == before
    ballast.unlink()
    writer.write_stat(3.0, {"driver_cpu_s": 0.7})
    writer.close()
    assert [stat.t for stat in read_journal(path).stats()] == [1.0, 3.0]
    assert writer.num_bytes == path.stat().st_size


def test_the_writer_measures_its_own_time_and_size(kit, tmp_path):
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    writer.write_header(kit.header())
    spent = writer.spent_s
    assert spent > 0.0
    writer.write_stat(1.0, {"driver_cpu_s": 0.5})
    assert writer.spent_s > spent
    writer.sync()
    writer.close()
    assert writer.num_bytes == path.stat().st_size


def test_what_was_written_survives_a_kill(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from headway.core.events import EvalDue\n"
        "from headway.telemetry.header import new_header\n"
        "from headway.telemetry.journal import JournalWriter\n"
        "writer = JournalWriter(Path(sys.argv[1]))\n"
        "writer.write_header(new_header(config={}, seed=0, queue={}))\n"
        "for seq in range(50):\n"
        "    writer.write_event(seq, seq / 10, EvalDue(), [], [])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "journal.jsonl"
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=_environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert [entry.seq for entry in read_journal(tmp_path).entries()] == list(range(50))


def test_the_room_loads_no_torch():
    program = (
        "import sys, pkgutil, importlib, headway.telemetry as room\n"
        "for found in pkgutil.iter_modules(room.__path__):\n"
        "    importlib.import_module(f'headway.telemetry.{found.name}')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], env=_environment(), check=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
