"""The bubblewrap provider keeps the contract, in the shape for root and in the one for ordinary users."""

import os
import shutil

import pytest

from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.layout import Layout, find_bwrap
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import SandboxContract


class _Bubblewrap(SandboxContract):
    tells_usage = False

    def destroy(self, provider, sandbox):
        shutil.rmtree(sandbox._folder)


class TestBubblewrap(_Bubblewrap):
    @pytest.fixture
    def provider(self, tmp_path):
        return BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="the class above runs directly"
)
class TestBubblewrapWithoutAView(_Bubblewrap):
    """What an ordinary user gets; root may run it too, without the process limit."""

    @pytest.fixture
    def provider(self, tmp_path, monkeypatch):
        settings = SandboxSettings(directory=str(tmp_path / "sandboxes"))
        provider = BubblewrapProvider(settings)
        monkeypatch.setattr(provider, "layout", lambda: Layout(find_bwrap(), settings, drop_uid=False))
        return provider
