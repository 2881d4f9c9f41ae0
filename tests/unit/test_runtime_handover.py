"""Folders in shared memory: whoever was killed leaves one, and nobody loses one that is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.runtime import handover
from headway.runtime.handover import owned, shared_folder, sweep_shared_memory

OWNER = """
import sys
from pathlib import Path
from headway.runtime import handover
handover.SHARED_MEMORY = Path(sys.argv[1])
with handover.owned(handover.shared_folder(sys.argv[2])):
    (handover.shared_folder(sys.argv[2]) / "0001").mkdir()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def owner(memory):
    started = []

    def start(run_id):
        words = [sys.executable, "-c", OWNER, str(memory), run_id]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def names(memory):
    return sorted(os.listdir(memory))


def test_what_a_killed_life_left_goes_and_what_a_live_one_has_stays(memory, owner):
    live, killed = owner("live-1"), owner("killed-2")
    assert sweep_shared_memory() == []
    killed.kill()
    killed.wait()
    assert sweep_shared_memory() == [shared_folder("killed-2")]
    assert names(memory) == ["headway-weights-live-1", "headway-weights-live-1.lock"]
    live.communicate(b"")  # ends in order: the folder is for whoever ends the life
    assert names(memory) == ["headway-weights-live-1"]


def test_a_folder_is_known_by_its_lock_alone_whatever_its_process_number_says(memory, owner):
    """A process of another pid namespace that shares the memory is not to be seen here."""
    process = owner("run-1")
    lock = memory / "headway-weights-run-1.lock"
    lock.write_text("999999999\n")
    assert sweep_shared_memory() == []
    process.kill()
    process.wait()
    lock.write_text(f"{os.getpid()}\n")  # the number is another's by now
    assert sweep_shared_memory() == [shared_folder("run-1")]


def test_what_is_not_beyond_doubt_stays(memory, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "file").write_text("x")
    old = shared_folder("of-an-earlier-version-1")
    old.mkdir()
    just_made = shared_folder("just-made-2")
    just_made.mkdir()
    (memory / f"{just_made.name}.lock").touch()  # not locked yet
    shared_folder("link-3").symlink_to(outside)
    (memory / "headway-weights-link-3.lock").write_text("1\n")
    (memory / "headway-weights-planted-4.lock").symlink_to(outside / "file")
    os.mkfifo(memory / "headway-weights-pipe-5.lock")
    before = names(memory)
    assert sweep_shared_memory() == []
    assert names(memory) == before
    assert (outside / "file").read_text() == "x"


def test_a_lock_whose_life_was_killed_before_it_made_its_folder_goes(memory):
    (memory / "headway-weights-early-1.lock").write_text("1\n")
    assert sweep_shared_memory() == []
    assert names(memory) == []


def test_a_folder_on_the_disk_has_no_lock(tmp_path):
    folder = tmp_path / "weights"
    with owned(folder):
        assert names(tmp_path) == ["weights"]
    assert Path("/dev/shm") == handover.SHARED_MEMORY
