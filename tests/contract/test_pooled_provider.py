"""A pool keeps the contract of the provider below it, cold and from what was made ahead."""

import asyncio
import shutil

import pytest

from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.pool import PooledProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import SandboxContract
from tests.contract.test_local_provider import TestLocal as OfLocal


class TestPooledLocal(SandboxContract):
    warm = 3

    @pytest.fixture
    async def provider(self):
        inner = LocalProvider(SandboxSettings())
        pool = PooledProvider(inner, max_live=16, warm=self.warm, run_id="pool")
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run())
            while pool.stats().num_ready < self.warm:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
            yield pool
            pool.close()
        assert await inner.list({"run": "pool"}) == []
        inner.close()

    def destroy(self, provider, sandbox):
        OfLocal.destroy(self, provider, sandbox)

    async def test_what_it_hands_out_was_ready(self, provider, sandbox):
        assert sandbox.warm


class TestPooledLocalCold(TestPooledLocal):
    warm = 0

    async def test_what_it_hands_out_was_ready(self, provider, sandbox):
        assert not sandbox.warm


class TestPooledBubblewrap(SandboxContract):
    tells_usage = False

    @pytest.fixture
    def provider(self, tmp_path):
        inner = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))
        return PooledProvider(inner, max_live=16)

    def destroy(self, provider, sandbox):
        shutil.rmtree(sandbox._folder)
