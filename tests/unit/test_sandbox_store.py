"""A store of snapshots: what it holds once, what goes when, what a kill or a second process does to it."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from headway.core.errors import SandboxError
from headway.sandbox.blobs import Held
from headway.sandbox.files import remove_tree
from headway.sandbox.store import Index, Store


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def names(store, kind="packs"):
    return set(os.listdir(store.path / kind))


def put(store, digest, path):
    path.mkdir()
    store.put(digest, path, None)
    return path


def test_a_snapshot_that_knows_what_is_unchanged_reads_nothing_again(store, work, monkeypatch):
    for name in "abc":
        (work / name).write_text(name * 10)
    index = Index()
    store.take(work, {}, index)
    time.sleep(0.06)  # files that have just changed are read once more
    index.changed = True
    first = store.take(work, {}, index)
    read = []
    monkeypatch.setattr("headway.sandbox.packs.Held", lambda fd, info: read.append(info) or Held(fd, info))
    assert store.take(work, {}, index) == first
    index.changed = True
    assert store.take(work, {}, index) == first
    assert read == []
    index.programs_run()  # whatever they left of sizes and times
    assert store.take(work, {}, index) == first
    assert len(read) == 3
    assert store.take(work, {}, index) == first
    assert len(read) == 3
    assert len(names(store)) == 1
    read.clear()
    (work / "b").write_text("B" * 10)
    assert store.take(work, {}, index) == first  # nobody said that anything was written
    index.changed = True
    second = store.take(work, {}, index)
    assert second != first
    assert len(read) == 1
    shutil.rmtree(store.path)  # what is gone is stored again
    assert store.take(work, {}, index) == second
    assert len(names(store)) == 1


def test_a_file_that_changes_at_once_with_its_size_and_times_unchanged_is_read(store, work, tmp_path):
    index, when = Index(), time.time_ns()
    for number in range(5):
        (work / "file").write_text(str(number))
        os.utime(work / "file", ns=(when, when))
        index.changed = True
        digest = store.take(work, {}, index)
        assert (put(store, digest, tmp_path / str(number)) / "file").read_text() == str(number)


def test_what_no_other_snapshot_needs_goes_with_one(store, work):
    (work / "shared").write_text("shared")
    taken, index = [], Index()
    for number in range(3):
        (work / "own").write_text(str(number))
        index.changed = True
        taken.append(store.take(work, {"n": str(number)}, index))
    same = store.take(work, {"n": "of the same tree"}, index)

    def held():
        return sorted("".join(sorted((store.path / "packs" / name).read_text())) for name in names(store))

    assert held() == ["0adehrs", "1", "2"]
    store.discard(taken[2])
    assert held() == ["0adehrs", "1", "2"]
    store.discard(same)
    assert held() == ["0adehrs", "1"]
    fresh = Store(store.path)  # another process's
    fresh.discard(taken[0])
    assert held() == ["0adehrs", "1"]  # a part of the first is needed
    store.discard(taken[1])
    store.discard(taken[1])
    for kind in ("snapshots", "trees", "places", "packs", "blobs", "drafts"):
        assert names(store, kind) == set()
    Store(store.path / "none").discard(taken[1])


def test_packs_take_no_more_than_twice_what_is_needed_of_them(store, work, tmp_path):
    """However much a program writes around one file that it keeps."""
    index, digest = Index(), ""
    for number in range(80):
        (work / f"kept-{number}").write_text(str(number))
        (work / "large").write_bytes(os.urandom(500_000))
        index.changed = True
        before, digest = digest, store.take(work, {}, index)
        store.discard(before)
        assert len(names(store)) <= 33
        held = sum((store.path / "packs" / name).stat().st_size for name in names(store))
        assert held <= 2 * (500_000 + 1000) + (1 << 20)
    back = put(store, digest, tmp_path / "back")
    assert [(back / f"kept-{number}").read_text() for number in range(80)] == [str(n) for n in range(80)]


def test_sparse_files_are_bounded_and_named_by_what_they_hold(store, work, tmp_path):
    for name, blocks in (("one", [5]), ("two", [5, 6]), ("none", [])):
        with open(work / name, "wb") as file:
            file.truncate(1 << 40)
            for block in blocks:
                os.pwrite(file.fileno(), b"x" * 4096, block * 4096)
    digest = store.take(work, {})
    assert all(name.startswith("s") for name in names(store, "blobs"))
    back = put(store, digest, tmp_path / "back")
    for name in ("one", "two", "none"):
        info, was = (back / name).stat(), (work / name).stat()
        assert (info.st_size, info.st_blocks) == (was.st_size, was.st_blocks)
    with open(back / "two", "rb") as file:
        assert os.pread(file.fileno(), 1 << 14, 5 * 4096 - 1) == b"\0" + b"x" * 8192 + bytes(8191)
    # Where a file system keeps zeros for holes, the name is the same.
    with open(work / "none", "r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), 1 << 20)
    assert store.take(work, {}, Index()) != digest  # its time
    assert len(names(store, "blobs")) == 3


def test_a_dense_file_cannot_pass_for_a_sparse_one(store, work):
    with open(work / "sparse", "wb") as file:
        file.truncate(8192)
        os.pwrite(file.fileno(), b"x" * 4096, 4096)
    (work / "dense").write_bytes(b"8192" + b"1\0" + b"x" * 4096)
    digest = store.take(work, {})
    (sparse,) = names(store, "blobs")
    at = json.loads((store.path / "places" / store.snapshots()[digest].tree).read_text())["at"]
    assert list(at) == [sparse.removeprefix("s")]  # of one hash, yet two


@pytest.fixture
def deep(work, tmp_path):
    yield work
    remove_tree(work)  # too deep for pytest
    remove_tree(tmp_path / "back")


def test_deep_and_odd_trees_come_back(store, deep, tmp_path):
    here = os.open(deep, os.O_RDONLY)
    for _ in range(10_000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.mkfifo("pipe", dir_fd=here)
    os.close(here)
    (deep / os.fsdecode(b"\xff\n\\")).write_text("odd")
    (deep / "suid").write_text("x")
    (deep / "suid").chmod(0o6755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(deep / "socket"))
    digest = store.take(deep, {})
    assert sum(path.stat().st_size for path in (store.path / "trees").iterdir()) < 1 << 20
    back = put(store, digest, tmp_path / "back")
    assert sorted(map(os.fsencode, os.listdir(back))) == sorted([b"\xff\n\\", b"d", b"suid"])
    assert stat.S_IMODE((back / "suid").stat().st_mode) == 0o755
    assert store.take(back, {}) == digest  # to the last time and mode


def test_killed_at_any_moment_it_leaves_whole_snapshots_and_what_the_next_look_finds(work, tmp_path):
    for number in range(200):
        (work / str(number)).write_bytes(os.urandom(20_000))
    code = (
        "import sys; from pathlib import Path; from headway.sandbox.store import Store\n"
        "print('go', flush=True)\n"
        "for n in range(1000): Store(Path(sys.argv[2])).take(Path(sys.argv[1]), {'n': str(n)})"
    )
    for number in range(6):
        path = tmp_path / f"store-{number}"
        process = subprocess.Popen([sys.executable, "-c", code, work, path], stdout=subprocess.PIPE)
        process.stdout.read(3)
        time.sleep(number * 0.012)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = Store(path)
        for at, digest in enumerate(list(store.snapshots())[:2]):
            put(store, digest, tmp_path / f"{number}.{at}")
        with store.spare(lambda labels: False) as spare:
            for file in spare:
                file.unlink()
        assert not path.exists() or sum(len(files) for _, _, files in os.walk(path)) <= 1  # the lock


def _takes(path, work, number):
    store = Store(path)
    for at in range(25):
        (work / str(number)).write_text(str(at % 3))
        digest = store.take(work, {"n": f"{number}.{at}"})
        target = work.with_name(f"target-{number}-{at}")
        target.mkdir()
        store.put(digest, target, None)
        assert (target / str(number)).read_text() == str(at % 3)
        store.discard(digest)
    os._exit(0)


def test_processes_that_share_a_store_take_nothing_from_one_another(store, tmp_path):
    context = multiprocessing.get_context("fork")
    processes = []
    for number in range(3):
        work = tmp_path / f"work-{number}"
        work.mkdir()
        processes.append(context.Process(target=_takes, args=(store.path, work, number)))
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert names(store) == names(store, "drafts") == set()


def test_threads_that_share_a_store_may_take_at_once(store, tmp_path):
    def take(number):
        work = tmp_path / f"work-{number}"
        work.mkdir()
        for at in range(20):
            (work / "file").write_text(f"{number} {at}")
            store.take(work, {"n": f"{number}.{at}"})

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.snapshots()) == len(names(store, "trees")) == 80


def test_a_full_disk_leaves_no_snapshot(store, work, monkeypatch):
    (work / "file").write_text("x")

    def full(fd, data, at):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.sandbox.packs.write_all", full)
    index = Index()
    with pytest.raises(SandboxError, match="No space left"):
        store.take(work, {}, index)
    assert index.changed
    assert store.snapshots() == {}
    assert names(store) == names(store, "drafts") == set()
