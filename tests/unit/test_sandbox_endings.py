"""Ends that fail: no place is kept for them, and a lease lasts until its sandbox is known to be gone."""

import asyncio
import fcntl
import os
import threading
import time

import pytest

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.sandbox import leases
from headway.sandbox.guard import end_left_overs
from headway.sandbox.leases import LeaseBook, own_label, read_books, taken
from headway.sandbox.pool import PooledProvider
from headway.sandbox.remote import RemoteSandbox
from headway.sandbox.roster import RosterProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.sweep import sweep
from tests.unit.test_sandbox_leases import book_of, dead
from tests.unit.test_sandbox_pool import Scripted, until


def states(folder):
    return {lease.id: lease.state for book in read_books(folder) for lease in book.leases.values()}


def pool_over(inner, folder, **given):
    return PooledProvider(inner, **({"max_live": 2, "book": book_of(folder)} | given))


async def test_an_end_that_fails_gives_its_place_back_and_keeps_its_lease_until_it_is_gone(tmp_path):
    inner = Scripted(9)
    pool = pool_over(inner, tmp_path)
    first, second = [await pool.create(name, {"run": "r"}) for name in "ab"]
    inner.broken = True
    with pytest.raises(SandboxError, match="does not answer"):
        await first.terminate()
    assert (pool.stats().num_out, pool.stats().num_unsure) == (1, 1)
    assert states(tmp_path) == {"a": "ending", "b": "live"}
    again = await pool.create("a", {"run": "r"})  # a place, and an id that what may still live has not
    assert (again.id, again.inner_id) == ("a", "a~1")
    await pool._starter.end_unsure()
    assert pool.stats().num_unsure == 1
    inner.broken = False
    await pool._starter.end_unsure()
    assert (pool.stats().num_unsure, sorted(inner.live)) == (0, ["a~1", "b"])
    assert states(tmp_path) == {"b": "live", "a~1": "live"}
    for sandbox in (again, second):
        await sandbox.terminate()
    assert read_books(tmp_path) == []


async def test_what_cannot_be_ended_after_a_failed_start_keeps_its_lease_and_a_sweep_finds_it(tmp_path):
    inner = Scripted(9)
    pool = pool_over(inner, tmp_path)
    inner.fate, inner.broken = "dies", True
    with pytest.raises(SandboxError, match="died at its start"):  # not what its end said
        await pool.create("a", {"run": "r"})
    assert states(tmp_path) == {"a": "ending"}
    assert pool.stats().num_out == 0
    dead(pool._book)
    swept = await sweep(lambda owner: inner, folder=tmp_path)
    assert list(swept.failed) == ["a"]
    inner.broken = False
    swept = await sweep(lambda owner: inner, folder=tmp_path)
    assert (swept.ended, inner.live, read_books(tmp_path)) == (["a"], {}, [])


async def test_a_ready_one_that_does_not_end_is_no_ready_one_and_is_ended_at_the_pools_end(tmp_path):
    inner = Scripted(9)
    pool = pool_over(inner, tmp_path, warm=1, max_live=1)
    running = asyncio.create_task(pool.run())
    await until(lambda: pool.stats().num_ready)
    (ready,) = pool.stock.shelves[""].ready
    assert states(tmp_path) == {ready.inner_id: "ready"}
    inner.broken = True
    await pool.create("a", {"image": "other"})
    assert states(tmp_path) == {ready.inner_id: "ending", "a": "live"}
    inner.broken = False
    pool.close()
    await running
    assert list(inner.live) == ["a"]
    assert states(tmp_path) == {"a": "live"}
    pool._book.close()


async def test_one_that_does_not_end_spares_no_other_of_a_run(tmp_path):
    inner = Scripted(9)
    pool = pool_over(inner, tmp_path)
    sandboxes = [await pool.create(name, {"run": "r"}) for name in "ab"]
    broken = sandboxes[0]._inner

    async def terminate():
        raise SandboxError("stuck")

    broken.terminate = terminate
    with pytest.raises(SandboxError, match="stuck"):
        await pool.reap("r")
    assert list(inner.live) == ["a"]
    assert pool.stats().num_out == 0
    pool._book.close()


# --- a machine elsewhere


class Machine:
    drop_uid, watched, pauses = 0, False, True

    def __init__(self):
        self.there_is, self.log, self.fails, self.slow = False, [], (), None
        self.go_on = asyncio.Event()  # what the slow call waits for

    async def make(self):
        self.there_is = True
        self._step("make")

    async def call(self, argv, feed, out, err, *, own=False):
        self._step(argv[-2])
        if self.slow == argv[-2]:
            await self.go_on.wait()
        return 0

    async def hold(self, still):
        self.log.append(f"hold {still}")

    async def there(self):
        return self.there_is

    async def end(self):
        self._step("end")
        self.there_is = False

    def _step(self, name):
        self.log.append(name)
        if name in self.fails:
            raise SandboxError(f"{name} failed")


class Roster(RosterProvider):
    def __init__(self):
        super().__init__(SandboxSettings(max_live=2))
        self.machines = {}

    def new(self, sandbox_id, labels):
        async def image():
            return None

        machine = self.machines[sandbox_id] = Machine()
        of = (sandbox_id, labels, machine, self.settings)
        return RemoteSandbox(*of, image=image, on_end=lambda: self.forget(sandbox_id))


async def test_a_machine_that_could_neither_start_nor_end_is_ended_when_it_can_be():
    provider = Roster()
    sandbox = await provider.create("a", {})
    machine = provider.machines["a"]
    machine.fails = ("make", "end")
    with pytest.raises(SandboxError, match="make failed"):
        await sandbox.prepare()
    with pytest.raises(SandboxError, match="lost"):  # another one under its name would hide it
        await sandbox.prepare()
    with pytest.raises(SandboxError, match="end failed"):
        await sandbox.terminate()
    assert await provider.list({}) == []  # it takes no place of max_live
    machine.fails = ()
    await sandbox.terminate()
    assert not machine.there_is
    ends = machine.log.count("end")
    await sandbox.terminate()
    assert machine.log.count("end") == ends


async def test_a_pause_while_the_machine_is_made_holds_it_and_what_was_asked_runs_after_the_resume():
    provider = Roster()
    sandbox = await provider.create("a", {})
    machine = provider.machines["a"]
    machine.slow = "prepare"
    work = asyncio.create_task(sandbox.exec(["true"]))
    await until(lambda: "prepare" in machine.log)
    pausing = asyncio.create_task(sandbox.pause())
    await asyncio.sleep(0)
    machine.go_on.set()
    await pausing
    await until(lambda: machine.log[-1] == "hold True")
    for _ in range(20):
        await asyncio.sleep(0)
    assert "run" not in machine.log
    await sandbox.resume()
    with pytest.raises(SandboxError):  # the machine says nothing of the command's start
        await work
    assert machine.log.index("hold True") < machine.log.index("run")
    await sandbox.terminate()


async def test_the_end_of_a_sandbox_that_was_paused_while_it_was_made_waits_for_nothing():
    provider = Roster()
    sandbox = await provider.create("a", {})
    provider.machines["a"].slow = "prepare"
    work = asyncio.create_task(sandbox.exec(["true"]))
    await until(lambda: "prepare" in provider.machines["a"].log)
    pausing = asyncio.create_task(sandbox.pause())
    await asyncio.sleep(0)
    provider.machines["a"].go_on.set()
    await pausing
    await sandbox.terminate()
    assert (await work).cause == "killed"


# --- the probe of preflight


class Probing(Scripted):
    probe = ("preflight", {"run": "preflight-1"})
    says = None

    def __init__(self, folder):
        super().__init__(4)
        self.folder, self.seen = folder, None

    async def preflight(self):
        self.seen = states(self.folder)
        if self.says is not None:
            raise self.says
        return []


@pytest.mark.parametrize("says", [None, SandboxUnavailableError("no engine"), SandboxError("broken")])
async def test_the_probe_of_preflight_has_a_lease_while_it_may_live(tmp_path, says):
    inner = Probing(tmp_path)
    inner.says = says
    pool = pool_over(inner, tmp_path)
    if says is None:
        assert await pool.preflight() == []
    else:
        with pytest.raises(type(says)):
            await pool.preflight()
    assert inner.seen == {"preflight": "starting"}
    assert inner.ends == ["preflight"] * (type(says) is SandboxError)
    assert read_books(tmp_path) == []


# --- leases


def test_a_line_that_was_written_in_pieces_or_not_whole_costs_no_other(tmp_path, monkeypatch):
    book = book_of(tmp_path)
    book.begin("a", {})
    real, left = os.write, [10**9]

    def write(file, data):
        piece = bytes(data)[: min(7, left[0])]
        left[0] -= len(piece)
        if not piece:
            raise OSError(28, "No space left on device")
        return real(file, piece)

    monkeypatch.setattr(leases.os, "write", write)
    book.begin("b", {"x": "1"})
    assert set(states(tmp_path)) == {"a", "b"}
    left[0] = 11
    with pytest.raises(SandboxError, match="No space"):
        book.begin("c", {})
    left[0] = 10**9
    book.begin("d", {})
    assert set(states(tmp_path)) == {"a", "b", "d"}
    book.close()


def test_whoever_looks_at_a_dead_owners_file_keeps_nobody_from_taking_it(tmp_path):
    book = book_of(tmp_path)
    book.begin("a", {})
    dead(book)
    path = read_books(tmp_path)[0].path
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    timer = threading.Timer(0.003, os.close, [looking])
    timer.start()
    with taken(path) as found:
        assert list(found.leases) == ["a"]
    timer.join()


async def test_a_guard_goes_on_until_the_file_is_gone_whoever_has_it(tmp_path):
    book = book_of(tmp_path)
    book.begin("a", {"run": "run"})
    dead(book)
    path = read_books(tmp_path)[0].path
    taker = os.open(path, os.O_RDWR)
    fcntl.flock(taker, fcntl.LOCK_EX)  # another sweeper, which dies over it
    guarding = asyncio.create_task(end_left_overs(path))
    await asyncio.sleep(0.2)
    assert not guarding.done()
    os.close(taker)
    async with asyncio.timeout(20):
        await guarding
    assert not path.exists()


async def test_a_start_elsewhere_may_come_until_its_time_after_its_owner_was_last_seen(tmp_path):
    book = LeaseBook("run", SandboxSettings(provider="podman", start_timeout_s=30), tmp_path)
    book.begin("a", {"run": "run"})
    lease = book._leases["a"]
    lease.created_s -= 100.0  # it tries for long, and its owner lived until now
    book._open()
    dead(book)
    inner = Scripted(4)
    assert list((await sweep(lambda owner: inner, folder=tmp_path)).failed) == ["a"]
    path = read_books(tmp_path)[0].path
    os.utime(path, (time.time() - 31, time.time() - 31))
    assert (await sweep(lambda owner: inner, folder=tmp_path)).failed == {}


def test_a_label_is_of_this_process_alone():
    kind, pid, began = own_label("try").split("-")
    assert (kind, int(pid)) == ("try", os.getpid())
    assert abs(int(began) / 1000 - time.time()) < 3600
    assert own_label("try") == own_label("try")
