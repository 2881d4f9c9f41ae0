"""What is served in a sandbox of the local providers; those of machines are in their own files."""

import asyncio
import os
import shutil

import pytest

from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.layout import Layout, find_bwrap
from headway.sandbox.local import LocalProvider
from headway.sandbox.pool import PooledProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.unsafe import UnsafeProvider
from tests.contract.serving_contract import ServingBasics, ServingContract, upper


class TestLocal(ServingContract):
    @pytest.fixture
    def provider(self):
        provider = LocalProvider(SandboxSettings())
        yield provider
        provider.close()


class TestPooledLocal(ServingBasics):
    @pytest.fixture
    async def provider(self):
        inner = LocalProvider(SandboxSettings())
        yield PooledProvider(inner, max_live=16)
        inner.close()


class TestBubblewrap(ServingContract):
    @pytest.fixture
    def provider(self, tmp_path):
        return BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="the class above runs directly"
)
class TestBubblewrapWithoutAView(ServingBasics):
    @pytest.fixture
    def provider(self, tmp_path, monkeypatch):
        settings = SandboxSettings(directory=str(tmp_path / "sandboxes"))
        provider = BubblewrapProvider(settings)
        monkeypatch.setattr(provider, "layout", lambda: Layout(find_bwrap(), settings, drop_uid=False))
        return provider


@pytest.mark.filterwarnings("ignore:.*unsafe-local")
class TestUnsafe(ServingBasics):
    @pytest.fixture
    def provider(self, tmp_path):
        directory = str(tmp_path / "sandboxes")
        return UnsafeProvider(SandboxSettings(directory=directory, allow_unsafe=True, wall_s=10))

    async def test_nobody_else_can_connect_and_nothing_else_is_reached(self, provider, sandbox):
        async with sandbox.serve(0, upper) as port:  # everybody can: preflight says so
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"anybody\n")
            assert await reader.readline() == b"ANYBODY\n"
            writer.close()
            await writer.wait_closed()
        levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
        assert levels["served"] == "absent"
