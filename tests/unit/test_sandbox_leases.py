"""Leases on disk: what is written when, who counts as dead, and what a sweep and a killed owner leave."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headway
from headway.core.errors import SandboxError
from headway.sandbox import leases
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.leases import LeaseBook, lease_folder, read_books, taken
from headway.sandbox.pool import PooledProvider
from headway.sandbox.pools import make_pool, provider_of
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.sweep import sweep
from tests.unit.test_sandbox_pool import Scripted

HERE = Path(__file__).parent


def book_of(folder, run="run"):
    return LeaseBook(run, SandboxSettings(directory=str(folder / "sandboxes")), folder)


def dead(book):
    """Give up a book's lock as the kernel does when its owner dies."""
    os.close(book._file)


def test_a_file_tells_owner_and_sandboxes_and_is_gone_with_the_last(tmp_path):
    book = book_of(tmp_path)
    assert read_books(tmp_path) == []
    book.begin("a", {"run": "run", "x": "1"})
    book.begin("warm", {})
    book.started("warm")
    book.begin("b", {})
    book.started("b", "b")
    book.started("warm", "c")
    book.end("b")
    (read,) = read_books(tmp_path)
    assert (read.owner.pid, read.owner.run, read.owner.provider, read.alive) == (
        os.getpid(), "run", "bubblewrap", True,
    )  # fmt: skip
    shown = [(lease.id, lease.name, lease.state, lease.labels) for lease in read.leases.values()]
    assert shown == [("a", "", "starting", {"run": "run", "x": "1"}), ("warm", "c", "live", {})]
    book.end("a")
    book.end("a")
    book.end("warm")
    assert list(tmp_path.iterdir()) == []
    book.begin("again", {})
    assert [*read_books(tmp_path)[0].leases] == ["again"]
    book.close()


def test_the_lock_tells_whether_an_owner_lives_and_one_taker_has_it(tmp_path):
    book = book_of(tmp_path)
    book.begin("a", {})
    (read,) = read_books(tmp_path)
    with taken(read.path) as found:
        assert found is None
    dead(book)
    assert read_books(tmp_path)[0].alive is False
    with taken(read.path) as found, taken(read.path) as second:
        assert (list(found.leases), second) == (["a"], None)


def test_without_locks_process_start_and_boot_tell(tmp_path, monkeypatch):
    def unlocked(*_):
        raise OSError("no locks here")

    book = book_of(tmp_path)
    book.begin("a", {})
    monkeypatch.setattr(leases.fcntl, "flock", unlocked)
    assert read_books(tmp_path)[0].alive
    path = read_books(tmp_path)[0].path
    lines = path.read_text().splitlines()
    for change in ({"pid": 2**22 + 1}, {"start": "1"}, {"boot": "another"}):
        path.write_text("\n".join([json.dumps(json.loads(lines[0]) | change), *lines[1:]]))
        assert not read_books(tmp_path)[0].alive
    book.close()


def test_a_cut_line_and_a_file_of_something_else_do_no_harm(tmp_path):
    book = book_of(tmp_path)
    book.begin("a", {})
    path = read_books(tmp_path)[0].path
    with path.open("a") as file:
        file.write('{"+": {"id": "b", "lab')
    (tmp_path / "x.leases").write_text("nonsense\n")
    (tmp_path / "y.leases").write_text("")
    assert [[*read.leases] for read in read_books(tmp_path)] == [["a"]]
    book.close()


def test_a_long_life_keeps_the_file_small_and_the_lock_held(tmp_path):
    book = book_of(tmp_path)
    book.begin("first", {})
    for number in range(4000):
        book.begin(f"s{number}", {"run": "run", "rollout": "t000001.1"})
        book.started(f"s{number}", f"s{number}")
        book.end(f"s{number}")
        if number % 500 == 0:
            (read,) = read_books(tmp_path)
            assert (read.alive, [*read.leases]) == (True, ["first"])
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < leases._COMPACT_BYTES + 1000
    book.close()


def test_a_renewal_moves_the_expiry(tmp_path):
    book = book_of(tmp_path)
    book.begin("a", {})
    os.utime(read_books(tmp_path)[0].path, (1000, 1000))
    assert read_books(tmp_path)[0].expires_s == 1000 + leases.EXPIRES_AFTER_S
    book.renew()
    assert read_books(tmp_path)[0].renewed_s > 1e9
    book.close()


def test_a_lease_that_cannot_be_written_is_an_infrastructure_failure(tmp_path):
    book = LeaseBook("run", SandboxSettings(), tmp_path / "missing")
    with pytest.raises(SandboxError, match="lease"):
        book.begin("a", {})


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(leases.tempfile, "gettempdir", lambda: str(tmp_path))
    assert lease_folder().stat().st_mode & 0o777 == 0o700
    lease_folder().rmdir()
    (tmp_path / f"headway-leases-{os.geteuid()}").symlink_to(tmp_path)
    with pytest.raises(SandboxError, match="your own"):
        lease_folder()


async def test_the_lease_is_there_before_creation_begins_and_goes_when_it_fails(tmp_path):
    inner, seen = Scripted(4), []

    async def create(sandbox_id, labels):
        (read,) = read_books(tmp_path)
        seen.append(read.leases[sandbox_id].state)
        raise SandboxError("broken")

    good, inner.create = inner.create, create
    pool = PooledProvider(inner, max_live=4, book=book_of(tmp_path))
    with pytest.raises(SandboxError, match="broken"):
        await pool.create("a", {})
    assert seen == ["starting"]
    assert read_books(tmp_path) == []
    inner.create = good
    sandbox = await pool.create("a", {})
    assert read_books(tmp_path)[0].leases["a"].state == "live"
    await sandbox.terminate()
    assert read_books(tmp_path) == []


async def test_a_sweep_ends_what_dead_owners_left_and_nothing_of_the_living(tmp_path):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))
    books = {run: book_of(tmp_path, run) for run in ("dead", "living", "dead too")}
    sandboxes = {}
    for run, book in books.items():
        book.begin(f"s/{run}", {"run": run})
        sandboxes[run] = await provider.create(f"s/{run}", {"run": run})
        await sandboxes[run].write("file", b"x")
    dead(books["dead"])
    dead(books["dead too"])
    # A dead worker of a run whose other worker lives: its own sandbox alone goes.
    sibling = book_of(tmp_path, "living")
    sibling.begin("sibling", {"run": "living"})
    other = BubblewrapProvider(provider.settings)
    await (await other.create("sibling", {"run": "living"})).write("file", b"x")
    dead(sibling)

    assert (await sweep(provider_of, runs={"dead too"}, folder=tmp_path)).ended == ["s/dead too"]
    swept = await sweep(provider_of, folder=tmp_path)
    assert (sorted(swept.ended), swept.num_owners, swept.failed) == (["s/dead", "sibling"], 2, {})
    assert [entry.name for entry in provider.root().iterdir()] == ["living"]
    assert [read.owner.run for read in read_books(tmp_path)] == ["living"]
    assert await sandboxes["living"].read("file") == b"x"
    await sandboxes["living"].terminate()
    books["living"].close()


async def test_what_cannot_be_ended_stays_for_a_later_sweep(tmp_path):
    book = book_of(tmp_path)
    book.begin("a", {"run": "run"})
    dead(book)

    def broken(owner):
        raise SandboxError("its engine is not here", value=owner.provider)

    swept = await sweep(broken, folder=tmp_path)
    assert swept.ended == []
    assert list(swept.failed) == [f"process {os.getpid()}"]
    assert len(read_books(tmp_path)) == 1
    assert (await sweep(provider_of, folder=tmp_path)).num_owners == 1
    assert read_books(tmp_path) == []


async def test_a_start_elsewhere_that_its_owner_s_death_cut_off_is_looked_for_until_it_must_have_come(
    tmp_path, monkeypatch
):
    book = LeaseBook("run", SandboxSettings(provider="podman", start_timeout_s=30), tmp_path)
    book.begin("a", {"run": "run"})
    dead(book)
    inner, made = Scripted(4), []

    async def end(sandbox_id, labels):
        return bool(made) and bool(made.pop())

    inner.end = end
    swept = await sweep(lambda owner: inner, folder=tmp_path)
    assert (list(swept.failed), len(read_books(tmp_path))) == (["a"], 1)
    made.append("a")
    swept = await sweep(lambda owner: inner, folder=tmp_path)
    assert (swept.ended, read_books(tmp_path)) == (["a"], [])
    book = LeaseBook("run", book.settings, tmp_path)
    book.begin("b", {"run": "run"})
    dead(book)
    now = leases.wall_time()
    monkeypatch.setattr("headway.sandbox.sweep.wall_time", lambda: now + 31)
    assert (await sweep(lambda owner: inner, folder=tmp_path)).failed == {}
    assert read_books(tmp_path) == []


async def test_the_pool_of_a_config_writes_leases_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(leases.tempfile, "gettempdir", lambda: str(tmp_path))
    pool = make_pool(SandboxSettings(directory=str(tmp_path / "sandboxes")), "some-run")
    sandbox = await pool.create("a", {"run": "some-run"})
    (read,) = read_books()
    assert (read.owner.run, [*read.leases]) == ("some-run", ["a"])
    await sandbox.terminate()
    assert read_books() == []


# --- a controller that is killed at any moment

KINDS = ("local", "local:preload", "bubblewrap", "bubblewrap:guarded")


@pytest.fixture
def nursery(tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    command = [sys.executable, str(HERE / "sandbox_nursery.py"), str(tmp_path)]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    yield process
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_controller_killed_at_any_moment_leaves_nothing(nursery, tmp_path, kind):
    await _killed(nursery, tmp_path, kind, times=5 if "guarded" in kind else 20, within_s=20.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_hundred_killed_controllers_leave_nothing_after_two_seconds(nursery, tmp_path, kind):
    await _killed(nursery, tmp_path, kind, times=100, within_s=2.0)


async def _killed(nursery, folder, kind, *, times, within_s):
    moments = random.Random(kind)
    for number in range(times):
        nursery.stdin.write(f"{kind}\n".encode())
        pid = int(nursery.stdout.readline())
        await asyncio.sleep(0.15 * number / times * moments.random())  # from before the first creation on
        os.kill(pid, signal.SIGKILL)
        since = time.monotonic()
        while left := _descendants(nursery.pid):
            assert time.monotonic() - since < within_s, left
            await asyncio.sleep(0.005)
    if "guarded" not in kind:
        swept = await sweep(provider_of, folder=folder / "leases")
        assert swept.failed == {}
    assert list((folder / "leases").glob("[!.]*")) == []
    root = folder / "sandboxes"
    assert not root.exists() or list(root.iterdir()) == []


def _descendants(ancestor):
    """Return pids and names of the processes below one, those left out that are dead and not reaped."""
    parents, names = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, parent, *_ = rest.split()
        parents[int(pid)] = int(parent)
        if state not in "ZX":
            names[int(pid)] = name
    found, front = {}, [ancestor]
    while front:
        at = front.pop()
        below = [pid for pid, parent in parents.items() if parent == at]
        front += below
        found |= {pid: names[pid] for pid in below if pid in names}
    return found


@pytest.mark.parametrize(
    "line",
    [
        {"id": ["a"], "labels": {}, "created_s": 1.0},
        {"id": "a", "labels": None, "created_s": 1.0},
        {"id": "a", "labels": {"run": 1}, "created_s": 1.0},
        {"id": "a", "labels": {}, "created_s": "yesterday"},
        {"id": "a", "labels": {}, "created_s": 1.0, "state": "asleep"},
        {"id": "a", "labels": {}, "created_s": 1.0, "name": None},
    ],
)
async def test_a_lease_of_other_types_costs_no_other(tmp_path, line):
    book = book_of(tmp_path)
    book.begin("b", {"run": "r"})
    path = read_books(tmp_path)[0].path
    with path.open("a") as file:
        file.write(json.dumps({"+": line}) + "\n" + json.dumps({"=": ["b", 3, None]}) + "\n")
    assert [[*read.leases.values()] for read in read_books(tmp_path)] == [[*book._leases.values()]]
    dead(book)
    swept = await sweep(lambda owner: Scripted(9), folder=tmp_path)
    assert (swept.num_owners, swept.failed) == (1, {})


@pytest.mark.parametrize(
    "change", [{"created_s": "x"}, {"pid": "1"}, {"settings": None}, {"run": 5}, {"provider": ["local"]}]
)
def test_an_owner_of_other_types_is_left_out_and_so_is_what_is_no_file(tmp_path, change):
    book = book_of(tmp_path)
    book.begin("a", {"run": "r"})
    owner = json.loads(read_books(tmp_path)[0].path.read_text().splitlines()[0])
    (tmp_path / "odd.leases").write_text(json.dumps(owner | change) + "\n")
    os.mkfifo(tmp_path / "pipe.leases")
    (tmp_path / "folder.leases").mkdir()
    assert [read.owner.pid for read in read_books(tmp_path)] == [os.getpid()]
    book.close()
