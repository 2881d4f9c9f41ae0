"""What sandboxes in containers do, over a stand-in and over real engines."""

import asyncio
import uuid

import pytest

from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits
from tests.contract.limited_contract import WithoutSpawns
from tests.contract.sandbox_contract import PYTHON, running, until_running
from tests.contract.serving_contract import CONNECT, upper
from tests.standins import box


class Pausing(WithoutSpawns):
    """A container can be paused, and has no other long-lived process than a command."""

    uid = "65534"

    async def test_preflight_names_what_holds(self, provider):
        levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
        assert levels["network"] == levels["host_files"] == levels["wall"] == "enforced"
        assert (provider.spawns, provider.pauses) == (False, True)

    async def test_a_paused_sandbox_makes_no_progress_and_its_time_does_not_count(self, sandbox):
        marker = f"977{uuid.uuid4().int % 10**9}"
        script = (
            f"sh -c 'sleep {marker}' & while :; do i=$((i+1)); echo $i > n.new; mv n.new n; sleep 0.01; done"
        )
        work = asyncio.create_task(sandbox.exec(["sh", "-c", script], limits=ExecLimits(wall_s=1.5)))
        await until_running(marker)
        await sandbox.pause()
        await sandbox.pause()
        await asyncio.sleep(2.0)  # more than the limit
        assert not work.done()
        await sandbox.resume()
        await sandbox.resume()
        result = await work
        assert (result.rc, result.cause, result.wall_s < 2.0) == (None, "wall", True)
        assert running(marker) == []
        assert int(await sandbox.read("n")) > 0

    async def test_a_paused_sandbox_can_be_copied_and_terminated(self, provider, sandbox, tmp_path):
        await sandbox.write("file", b"x")
        await sandbox.pause()
        digest = await provider.snapshot(sandbox.id, tmp_path / "store", {})
        with pytest.raises(SandboxError, match="paused"):
            await sandbox.exec(["true"])
        other = await self.restored(provider, tmp_path / "store", digest)
        assert await other.read("file") == b"x"
        await other.terminate()
        await sandbox.terminate()
        assert await provider.list({}) == []

    async def test_a_command_that_is_cancelled_under_a_pause_ends(self, sandbox):
        marker = f"976{uuid.uuid4().int % 10**9}"
        work = asyncio.create_task(sandbox.exec(["sleep", marker]))
        await until_running(marker)
        while True:  # the client's own line holds the marker too, before the command began
            if sum(1 for pid in running(marker) if box.command_line(pid) == b"sleep"):
                break
            await asyncio.sleep(0.01)
        await sandbox.pause()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert running(marker) == []
        await sandbox.resume()
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    async def test_a_sandbox_that_was_lost_while_paused_is_detected_at_resume(self, provider, sandbox):
        await sandbox.write("file", b"x")
        await sandbox.pause()
        self.destroy(provider, sandbox)
        with pytest.raises(SandboxError):
            await sandbox.resume()


class ContainerBasics:
    """What containers have of their own."""

    async def test_a_file_limit_ends_with_its_cause(self, sandbox):
        result = await sandbox.exec([*PYTHON, "for i in range(1100): open(str(i), 'w').close()"])
        assert (result.rc, result.cause) == (1, "inodes")

    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            ("x = bytearray(1 << 30)", "oom"),
            ("for i in range(9): open(str(i), 'wb').write(b'x' * (8 << 20))", "disk"),
        ],
    )
    async def test_limits_end_with_their_cause(self, sandbox, code, cause):
        result = await sandbox.exec([*PYTHON, code])
        assert (result.rc, result.cause) == (1, cause)

    async def test_nothing_is_written_outside_and_there_are_no_privileges(self, sandbox):
        places = "/x /usr/x /opt/x /proc/sys/kernel/hostname"
        script = (
            f"for at in {places}; do (echo x > $at) 2>/dev/null && echo $at; done; "
            "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status"
        )
        shown = await sandbox.exec(["sh", "-c", script])
        assert shown.stdout.split() == ["65534", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]

    async def test_a_program_reads_and_ends_neither_the_first_process_nor_a_sibling(self, sandbox):
        code = (
            "import os\n"
            "for pid in (1, -1):\n"
            "    try: os.kill(pid, 9)\n"
            "    except OSError as error: print(type(error).__name__)\n"
            "try: open('/proc/1/mem', 'r+b')\n"
            "except OSError as error: print(type(error).__name__)\n"
        )
        result = await sandbox.exec([*PYTHON, code])
        assert result.rc != 0 or result.stdout.split()[-1] == "PermissionError"
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    async def test_tmp_is_empty_again_at_each_command(self, sandbox):
        await sandbox.exec(["sh", "-c", "mkdir -p /tmp/a/b; echo x > /tmp/a/b/c; echo y > /dev/shm/d"])
        assert (await sandbox.exec(["ls", "-A", "/tmp", "/dev/shm"])).stdout.split() == ["/dev/shm:", "/tmp:"]

    async def test_a_folder_to_run_in(self, sandbox):
        await sandbox.write("a/b", b"x")
        assert (await sandbox.exec(["ls"], cwd="a")).stdout == "b\n"
        assert (await sandbox.exec(["ls"], cwd="none")).rc == 126


class RelayBasics:
    """The relay that serves is out of the programs' reach."""

    async def test_a_program_can_neither_end_nor_read_the_relay(self, sandbox):
        attack = (
            "import os\n"
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    if b'relay' in open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\\0'):\n"
            "        for harm in (lambda: os.kill(int(pid), 9), lambda: open(f'/proc/{pid}/mem'),\n"
            "                     lambda: os.listdir(f'/proc/{pid}/fd')):\n"
            "            try: harm(); print('done')\n"
            "            except PermissionError: print('refused')\n"
        )
        code = CONNECT + "server.sendall(b'still\\n'); print(server.recv(9))"
        async with sandbox.serve(0, upper) as port:
            assert (await sandbox.exec([*PYTHON, attack])).stdout == "refused\n" * 3
            assert (await sandbox.exec([*PYTHON, code, str(port)])).stdout == "b'STILL\\n'\n"
            assert (await sandbox.stats()).num_processes == 0
