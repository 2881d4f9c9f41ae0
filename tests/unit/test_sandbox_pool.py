"""The pool and its rules: starts in line, what is kept ready, and any order of events."""

import asyncio
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.errors import SandboxError, SandboxRefusedError
from headway.sandbox.local import LocalProvider
from headway.sandbox.pool import PooledProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.starts import REFILL, ROLLOUT, VERIFY, StartLine
from headway.sandbox.warmth import WINDOW_S, Warmth

# --- starts


def test_the_most_urgent_start_first_and_equals_in_their_order():
    line = StartLine(1)
    for ticket, priority in enumerate([REFILL, ROLLOUT, VERIFY, ROLLOUT, VERIFY]):
        line.ask(ticket, priority)
    order = []
    for _ in range(5):
        (ticket,) = line.begin(0.0)
        assert line.begin(0.0) == []
        order.append(ticket)
        line.leave(ticket)
    assert order == [2, 4, 1, 3, 0]


def test_a_second_s_worth_starts_together_and_the_rest_at_the_rate():
    line = StartLine(100, 4.0)
    for ticket in range(6):
        line.ask(ticket, ROLLOUT)
    assert line.begin(10.0) == [0, 1, 2, 3]
    assert line.due_s(10.0) == pytest.approx(0.25)
    assert line.begin(10.2) == []
    assert line.begin(10.25) == [4]
    assert line.begin(10.5) == [5]
    assert line.due_s(10.5) is None


@given(
    most=st.integers(1, 5),
    per_s=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    steps=st.lists(st.tuples(st.sampled_from("alnt"), st.integers(0, 30)), max_size=80),
)
def test_the_line_keeps_its_limits_and_forgets_nobody(most, per_s, steps):
    line, now, number, began = StartLine(most, per_s), 0.0, 0, []
    waiting, starting = {}, set()
    for kind, value in steps:
        if kind == "a":
            waiting[number] = value % 3
            line.ask(number, value % 3)
            number += 1
        elif kind == "l":
            everyone = [*waiting, *starting]
            if everyone:
                ticket = everyone[value % len(everyone)]
                waiting.pop(ticket, None)
                starting.discard(ticket)
                line.leave(ticket)
        elif kind == "t":
            now += value / 10
        for ticket in line.begin(now):
            best = min((priority, ticket) for ticket, priority in waiting.items())
            assert (waiting.pop(ticket), ticket) == best
            starting.add(ticket)
            began.append(now)
        assert len(starting) <= most
        assert (line.num_waiting, line.num_starting) == (len(waiting), len(starting))
        if waiting and len(starting) < most:
            assert line.due_s(now) > 0
    for first in began:
        if per_s:
            assert sum(first <= at < first + 1 - 1e-9 for at in began) <= max(1.0, 2 * per_s)


# --- how many are kept ready


def test_as_many_are_kept_as_the_busiest_second_of_late_asked_for():
    warmth = Warmth(8)
    assert warmth.target(0.0) == 8
    for number in range(5):
        warmth.asked(10.0 + number * 0.01)
    warmth.asked(30.0)
    assert [warmth.target(at) for at in (31.0, 10.0 + WINDOW_S, 10.1 + WINDOW_S, 500.0)] == [5, 5, 1, 1]
    for _ in range(20):
        warmth.asked(600.0)
    assert warmth.target(600.0) == 8
    assert Warmth(0).target(0.0) == 0


# --- the pool over a provider that does as it is told


class Scripted:
    """A provider whose sandboxes are names; each start takes some turns of the loop, fails or is refused."""

    snapshots = True
    spawns = pauses = False

    def __init__(self, most):
        self.most, self.live, self.starting = most, {}, 0
        self.fate, self.most_starting, self.most_live = "well", 0, 0
        self.log, self.ends = [], []
        self.broken = False  # whether nothing can be ended

    async def preflight(self):
        return []

    async def create(self, sandbox_id, labels):
        assert sandbox_id not in self.live
        if len(self.live) >= self.most:
            raise SandboxError("max_live")
        if self.fate == "refused":
            raise SandboxRefusedError("quota", retry_after_s=0.02)
        if self.fate == "failed":
            raise SandboxError("broken")
        sandbox = self.live[sandbox_id] = Name(sandbox_id, dict(labels), self)
        self.most_live = max(self.most_live, len(self.live))
        self.log.append(sandbox_id)
        return sandbox

    async def restore(self, sandbox_id, labels, store, digest):
        return await self.create(sandbox_id, labels)

    async def alive(self, sandbox_id):
        await asyncio.sleep(0)
        return sandbox_id in self.live and not self.live[sandbox_id].dead

    async def list(self, labels):
        return list(self.live)

    async def end(self, sandbox_id, labels):
        self.ends.append(sandbox_id)
        if self.broken:
            raise SandboxError("its engine does not answer")
        return self.live.pop(sandbox_id, None) is not None

    async def reap(self, run_id):
        return 0


class Name:
    def __init__(self, sandbox_id, labels, provider):
        self.id, self.labels, self.provider, self.dead = sandbox_id, labels, provider, False

    async def prepare(self):
        self.provider.starting += 1
        self.provider.most_starting = max(self.provider.most_starting, self.provider.starting)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if self.provider.fate == "dies":
                raise SandboxError("died at its start")
        finally:
            self.provider.starting -= 1

    async def terminate(self):
        await asyncio.sleep(0)
        if self.provider.broken:
            raise SandboxError("its engine does not answer")
        self.provider.live.pop(self.id, None)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "create", "end", "cancel", "kill", "fate", "wait", "tick"]),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(operations=OPERATIONS, warm=st.integers(0, 4), most=st.integers(1, 6), starting=st.integers(1, 3))
def test_in_any_order_of_events_nothing_is_lost_given_twice_or_too_many(operations, warm, most, starting):
    asyncio.run(_play(operations, warm, most, starting))


async def _play(operations, warm, most, starting):
    inner, now = Scripted(most), [0.0]
    pool = PooledProvider(inner, max_live=most, max_starting=starting, warm=warm, clock=lambda: now[0])
    asking, held, killed = {}, {}, set()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        for number, (kind, value) in enumerate(operations):
            if kind == "create" and len(asking) + len(held) < most:  # as the scheduler grants
                labels = {"purpose": "verify" if value % 2 else "rollout", "image": "ab"[value % 3 == 0]}
                asking[f"s{number}"] = asyncio.create_task(pool.create(f"s{number}", labels))
            elif kind == "end" and held:
                name = list(held)[value % len(held)]
                await held.pop(name).terminate()
            elif kind == "cancel" and asking:
                list(asking.values())[value % len(asking)].cancel()
            elif kind == "kill":
                for ready in [r for shelf in pool.stock.shelves.values() for r in shelf.ready][value % 3 :]:
                    ready.inner.dead = True
                    killed.add(ready.inner_id)
            elif kind == "fate":
                inner.fate = ["well", "well", "refused", "failed", "dies"][value % 5]
            elif kind == "tick":
                now[0] += value * 3
            for _ in range(value if kind == "wait" else 1):
                await asyncio.sleep(0)
            _collect(asking, held, killed, inner)
            assert len(inner.live) <= most
        inner.fate = "well"
        while asking:
            await asyncio.wait(asking.values())
            _collect(asking, held, killed, inner)
        assert sorted(await pool.list({})) == sorted(held)
        assert Counter(sandbox.inner_id for sandbox in held.values()).total() == len(held)
        for sandbox in held.values():
            assert await pool.alive(sandbox.id) or sandbox.inner_id in killed
            await sandbox.terminate()
            await sandbox.terminate()
        pool.close()
        await running
    assert inner.live == {}
    assert inner.starting == 0
    assert inner.most_starting <= starting
    assert inner.most_live <= most
    assert pool.stats().num_out == pool.stats().num_ready == pool.stats().num_filling == 0


def _collect(asking, held, killed, inner):
    for name in [name for name, task in asking.items() if task.done()]:
        task = asking.pop(name)
        if task.cancelled():
            continue
        if task.exception() is not None:
            assert isinstance(task.exception(), SandboxError), task.exception()
            assert "max_live" not in str(task.exception())
            continue
        sandbox = task.result()
        assert (sandbox.id, sandbox.inner_id in inner.live) == (name, True)
        assert sandbox.inner_id not in [other.inner_id for other in held.values()]
        held[name] = sandbox


async def until(holds):
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - a pool tells nobody
            await asyncio.sleep(0.001)


async def _pool(inner, **given):
    """A pool that runs, when all that it keeps is ready."""
    pool = PooledProvider(inner, **given)
    running = asyncio.create_task(pool.run())
    await until(lambda: pool.stats().num_ready >= given["warm"])
    return pool, running


async def test_a_verifier_starts_before_a_rollout_and_a_refill_last():
    inner = Scripted(10)
    pool = PooledProvider(inner, max_live=10, max_starting=1, warm=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.create("first", {}))
        await asyncio.sleep(0)
        running = group.create_task(pool.run())
        await asyncio.sleep(0)
        group.create_task(pool.create("rollout", {"purpose": "rollout", "image": "x"}))
        group.create_task(pool.create("verify", {"purpose": "verify", "image": "x"}))
        await until(lambda: len(inner.log) == 4)
        pool.close()
        await running
    assert inner.log[:3] == ["first", "verify", "rollout"]
    assert inner.log[3].startswith("warm-")


async def test_what_is_ready_gives_way_to_another_image_and_to_a_refusal():
    inner = Scripted(2)
    pool, running = await _pool(inner, max_live=2, warm=2)
    first = await pool.create("x", {"image": "other"})
    second = await pool.create("y", {"image": "other"})
    assert (first.warm, second.warm) == (False, False)
    await first.terminate()
    await second.terminate()
    pool.close()
    await running
    assert inner.live == {}


async def test_a_refusal_of_a_refill_is_not_repeated_at_once_and_harms_nobody():
    inner, now = Scripted(4), [0.0]
    inner.fate = "refused"
    pool = PooledProvider(inner, max_live=4, warm=2, clock=lambda: now[0])
    running = asyncio.create_task(pool.run())
    await until(lambda: pool.stats().refill_error)
    assert "quota" in pool.stats().refill_error
    with pytest.raises(SandboxRefusedError, match="quota"):
        await pool.create("a", {})
    inner.fate = "well"
    for _ in range(20):
        await asyncio.sleep(0)
    assert pool.stats().num_ready == 0
    assert not (await pool.create("b", {})).warm
    now[0] = 5.0
    pool._bell.ring()
    await until(lambda: pool.stats().num_ready)
    assert pool.stats().refill_error == ""
    pool.close()
    await running


async def test_a_ready_sandbox_that_died_is_not_handed_out():
    inner = LocalProvider(SandboxSettings())
    pool, running = await _pool(inner, max_live=8, warm=2)
    for ready in pool.stock.shelves[""].ready:
        await ready.inner._cell.end()
    sandbox = await pool.create("a", {})
    assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"
    assert (pool.stats().num_dead, sandbox.warm) == (2, False)
    await sandbox.terminate()
    pool.close()
    await running
    assert await inner.list({}) == []
    inner.close()


async def test_what_is_kept_ready_follows_the_demand():
    inner, now = Scripted(40), [0.0]
    pool, running = await _pool(inner, max_live=40, warm=6, clock=lambda: now[0])
    for number in range(4):
        await pool.create(f"a{number}", {})
    assert pool.stats().num_warm == 4

    async def settled(num):
        pool._bell.ring()
        await until(lambda: pool.stats().num_ready == num)

    await settled(4)
    now[0] = WINDOW_S + 1.0
    await settled(1)
    for number in range(9):
        await pool.create(f"b{number}", {})
    await settled(6)
    pool.close()
    await running
    assert len(inner.live) == 13
