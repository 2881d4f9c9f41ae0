"""The Modal provider keeps the contract: the real SDK speaks to a stand-in of the service's wire.

Never run against the real service (tests/standins/modal_service.py says what the stand-in is).
"""

import asyncio
import os
import uuid

import pytest

from headway.core.errors import SandboxError, SandboxRefusedError, SandboxUnavailableError, UserError
from headway.sandbox.modal import ModalProvider, tag_value
from headway.sandbox.modal_service import Service
from headway.sandbox.settings import SandboxSettings
from tests.contract.limited_contract import WithoutSpawns
from tests.contract.sandbox_contract import PYTHON
from tests.contract.serving_contract import ServingBasics, ServingContract
from tests.standins import box

modal = pytest.importorskip("modal", reason="the extra `modal` is not installed")
pytestmark = [
    pytest.mark.skipif(bool(box.unusable()), reason=box.unusable() or "runs"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
async def service(tmp_path, monkeypatch):
    from grpclib.const import Status

    from tests.standins.modal_service import Service as Standin

    async with Standin(tmp_path / "service").running() as running:
        running.Status = Status
        monkeypatch.setenv("MODAL_SERVER_URL", running.url)
        monkeypatch.setenv("MODAL_TOKEN_ID", "ak-stand-in")
        monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-stand-in")
        monkeypatch.setattr(Service, "first_pause_s", 0.01)
        forget_client()
        yield running
        forget_client()


def forget_client():
    modal.client._Client._client_from_env = None


@pytest.fixture
def provider(service):
    return ModalProvider(SandboxSettings(wall_s=20))


class TestModal(WithoutSpawns):
    uid = "65534"

    @pytest.fixture
    def provider(self, service):
        self.service = service
        return ModalProvider(SandboxSettings(wall_s=20))

    async def test_preflight_names_what_holds(self, provider):
        levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
        assert levels["network"] == levels["host_files"] == levels["wall"] == "enforced"
        assert (provider.spawns, provider.pauses) == (False, False)

    def destroy(self, provider, sandbox):
        from tests.standins.modal_service import destroy

        destroy(self.service.sandboxes[sandbox.machine._sandbox.object_id])


class TestModalServes(ServingBasics):
    pass


@pytest.mark.slow
class TestModalServesAll(ServingContract):
    pass


async def test_the_work_folder_and_commands_are_those_of_a_user_without_privileges(provider):
    sandbox = await provider.create("a", {"run": "r"})
    shown = await sandbox.exec(
        ["sh", "-c", "id -u; stat -c %u /work; grep -E 'CapEff|NoNewPrivs' /proc/self/status"]
    )
    assert shown.stdout.split() == ["65534", "65534", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    code = "import os\ntry: os.kill(os.getppid(), 9)\nexcept PermissionError: print('refused')"
    assert (await sandbox.exec([*PYTHON, code])).stdout == "refused\n"
    await sandbox.terminate()


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import time\nfor i in range(1100): open(str(i), 'w').close()\ntime.sleep(9)", "inodes"),
        ("import time\nfor i in range(9): open(str(i), 'wb').write(b'x' * (8 << 20))\ntime.sleep(9)", "disk"),
    ],
)
async def test_a_work_folder_that_grows_too_large_ends_the_command(provider, code, cause):
    sandbox = await provider.create("a", {"run": "r"})
    result = await sandbox.exec([*PYTHON, code])
    assert (result.rc, result.cause) == (None, cause)
    await sandbox.terminate()


async def test_machines_are_asked_for_with_limits_tags_and_a_name(service, provider):
    sandbox = await provider.create("run 1/s", {"run": "run 1"})
    await sandbox.exec(["true"])
    (made,) = service.sandboxes.values()
    asked = made["definition"]
    assert (asked.resources.milli_cpu_max, asked.resources.memory_mb_max) == (1000, 256 + 32 + 32 + 64)
    assert asked.timeout_secs == 3600
    assert made["tags"]["headway-run"] == "run-1"
    assert made["tags"]["headway-id"] == "run-1-s"
    assert made["tags"]["headway-owner"] == tag_value(f"{os.uname().nodename}:{os.getpid()}")
    assert made["name"].startswith("headway-")
    await sandbox.terminate()
    assert service.running_ones() == []


async def test_patience_is_had_by_one_owner_and_then_it_is_a_failure_of_infrastructure(service, provider):
    status = service.Status.RESOURCE_EXHAUSTED
    service.refusals["SandboxCreateV2"] = [status, status]
    sandbox = await provider.create("a", {"run": "r"})
    assert (await sandbox.exec(["true"])).rc == 0
    assert service.calls.count("SandboxCreateV2") == 3
    await sandbox.terminate()
    service.refusals["SandboxCreateV2"] = [status] * 99
    other = await provider.create("b", {"run": "r"})
    service.calls.clear()
    with pytest.raises(SandboxRefusedError, match="make a machine") as caught:
        await other.exec(["true"])
    assert not isinstance(caught.value, UserError)
    assert service.calls.count("SandboxCreateV2") == 5
    assert service.running_ones() == []


async def test_a_name_that_is_taken_is_the_machine_that_an_earlier_call_made(service, provider, monkeypatch):
    sandbox = await provider.create("a", {"run": "r"})
    real = service.sandboxes

    class Lost(dict):  # the first answer is lost on its way, after the machine was made
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            if len(self) == 1:
                raise ConnectionResetError

    service.sandboxes = Lost(real)
    assert (await sandbox.exec(["echo", "here"])).stdout == "here\n"
    assert len(service.sandboxes) == 1
    await sandbox.terminate()
    assert service.running_ones() == []


async def test_machines_of_a_dead_controller_are_reaped_by_their_tag(service, provider):
    run = f"dead-{uuid.uuid4().hex}"
    other = ModalProvider(SandboxSettings())  # stands for one in another process
    for number in range(2):
        await (await other.create(f"{run}/{number}", {"run": run})).exec(["true"])
    assert await provider.reap("another") == 0
    assert await provider.end(f"{run}/0", {"run": run})
    assert not await provider.end(f"{run}/0", {"run": run})
    assert await provider.reap(run) == 1
    assert service.running_ones() == []


async def test_a_cancelled_start_leaves_no_machine(service, provider):
    sandbox = await provider.create("a", {"run": "r"})
    work = asyncio.create_task(sandbox.exec(["true"]))
    while "SandboxCreateV2" not in service.calls:  # noqa: ASYNC110 - the service tells nobody
        await asyncio.sleep(0.002)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert service.running_ones() == []


async def test_without_credentials_there_is_one_clear_error(service, monkeypatch, tmp_path):
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    monkeypatch.delenv("MODAL_TOKEN_ID")
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    forget_client()
    with pytest.raises(SandboxUnavailableError, match="modal token new"):
        await ModalProvider(SandboxSettings()).preflight()
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-wrong")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong")
    with pytest.raises(SandboxUnavailableError, match="modal token new"):
        await ModalProvider(SandboxSettings()).preflight()


async def test_what_it_cannot_do_it_says(provider):
    sandbox = await provider.create("a", {"run": "r"})
    assert (provider.spawns, provider.pauses) == (False, False)
    with pytest.raises(SandboxError):
        await sandbox.pause()
    with pytest.raises(SandboxError):
        await sandbox.spawn("server", ["sleep", "9"])
