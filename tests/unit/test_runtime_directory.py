"""A run directory is driven by one process at a time."""

import errno
import fcntl
import json
import os
import subprocess
import sys

import pytest

from headway.core.errors import RunDirectoryError
from headway.runtime import directory


def test_a_run_is_claimed_once_and_free_again_afterwards(tmp_path):
    with directory.claimed(tmp_path):
        wanted = pytest.raises(RunDirectoryError, match="another process is starting the run")
        with wanted, directory.claimed(tmp_path):
            pass
    with directory.claimed(tmp_path):
        pass


def test_a_claim_ends_with_its_process_and_a_life_that_goes_on_is_named(tmp_path):
    code = (
        "import sys, pathlib, time\n"
        "from headway.runtime import directory\n"
        "with directory.claimed(pathlib.Path(sys.argv[1])):\n"
        "    print('claimed', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), "headway"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        life = {"pid": other.pid, "run_id": "r", "weights_dir": "w"}
        (tmp_path / directory.LIFE).write_text(json.dumps(life))
        wanted = pytest.raises(RunDirectoryError, match=f"process {other.pid} is still running")
        with wanted, directory.claimed(tmp_path):
            pass
    finally:
        other.kill()
        other.communicate()
    with directory.claimed(tmp_path):
        assert directory.last_life(tmp_path) == directory.LifeRecord(**life)
    assert os.listdir(tmp_path) == [directory.LIFE]


def no_locks(handle, operation):
    raise OSError(errno.ENOLCK, "No locks available")


def life(pid, host=""):
    return directory.LifeRecord(pid, "r", "w", host)


def test_where_nothing_can_be_locked_the_record_alone_tells_of_a_life_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(directory, "_is_headway", lambda pid: pid == 4)
    with directory.claimed(tmp_path) as alone:
        assert not alone
        directory.begin_life(tmp_path, life(4, directory.this_host()))
        with pytest.raises(RunDirectoryError, match="process 4 is still running"):
            directory.last_life(tmp_path, alone=alone)
        directory.end_life(tmp_path)
        directory.begin_life(tmp_path, life(4, "another"))
        with pytest.raises(RunDirectoryError, match="process 4 of the machine another may still") as caught:
            directory.last_life(tmp_path, alone=alone)
        assert "then delete " in str(caught.value)
        directory.end_life(tmp_path)
        directory.begin_life(tmp_path, life(5, directory.this_host()))
        assert directory.last_life(tmp_path, alone=alone) == life(5, directory.this_host())


def test_the_claim_tells_that_a_life_is_over_whatever_has_its_process_id_now(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_is_headway", lambda pid: True)
    directory.begin_life(tmp_path, life(4, "another"))
    with directory.claimed(tmp_path) as alone:
        assert alone
        assert directory.last_life(tmp_path, alone=alone) == life(4, "another")


def test_of_two_that_begin_at_once_one_is_refused(tmp_path):
    directory.begin_life(tmp_path, life(1))
    with pytest.raises(RunDirectoryError, match="another process has just begun"):
        directory.begin_life(tmp_path, life(2))
    assert os.listdir(tmp_path) == [directory.LIFE]
    assert directory.life_record(tmp_path) == life(1)
    directory.bury(tmp_path, life(1))
    with pytest.raises(RunDirectoryError, match="another process has just begun"):
        directory.bury(tmp_path, life(1))  # both had read the record of the life that was killed
    directory.begin_life(tmp_path, life(2))
    with pytest.raises(RunDirectoryError, match="another process has just begun"):
        directory.bury(tmp_path, life(1))
    assert directory.life_record(tmp_path) == life(2)
    assert os.listdir(tmp_path) == [directory.LIFE]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": "x"}', '{"pid": 1, "what": 2}', "\x00\xff"])
def test_a_record_that_is_garbage_is_refused_with_its_remedy(tmp_path, text):
    (tmp_path / directory.LIFE).write_bytes(text.encode("latin-1"))
    with pytest.raises(RunDirectoryError, match="cannot be read") as caught:
        directory.last_life(tmp_path, alone=True)
    assert "Make sure that no process drives the run, then delete that file" in str(caught.value)


def test_runs_cannot_be_kept_in_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="file is not a directory") as caught:
        directory.create(tmp_path / "file", "name")
    assert caught.value.key == "run.dir"
