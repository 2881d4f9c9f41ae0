"""The local provider keeps the contract, with and without a preloaded interpreter."""

import select
import signal

import pytest

from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import SandboxContract


class _Local(SandboxContract):
    preload = True

    @pytest.fixture
    def provider(self):
        provider = LocalProvider(SandboxSettings(preload_python=self.preload))
        yield provider
        provider.close()

    def destroy(self, provider, sandbox):
        pid_fd = sandbox._cell._pid_fd
        signal.pidfd_send_signal(pid_fd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pid_fd, select.POLLIN)
        assert poll.poll(5000)


class TestLocal(_Local):
    pass


class TestLocalWithoutAPreloadedInterpreter(_Local):
    preload = False
