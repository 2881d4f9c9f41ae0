"""What every sandbox provider does. Subclass SandboxContract and give it a `provider` fixture."""

# ruff: noqa: ASYNC110 - other processes are watched by looking again

import asyncio
import os
import uuid

import pytest

from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits, Usage

PYTHON = ("python3", "-I", "-S", "-B", "-c")


def running(marker):
    """Return pids of processes of this machine whose command line holds `marker`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if marker.encode() in file.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def sleeping(marker):
    """Return how many processes are `sleep MARKER`, whatever else holds the marker."""
    found = 0
    for pid in running(marker):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found += file.read() == f"sleep\0{marker}\0".encode()
        except OSError:
            continue
    return found


async def until_running(marker):
    while not running(marker):
        await asyncio.sleep(0.01)


class SandboxContract:
    """The tests."""

    @pytest.fixture
    async def sandbox(self, provider):
        sandbox = await provider.create(f"s/{uuid.uuid4().hex}", {"run": f"contract-{os.getpid()}"})
        yield sandbox
        await sandbox.terminate()

    async def test_preflight_names_what_holds(self, provider):
        levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
        assert (provider.spawns, provider.pauses) == (True, True)
        assert levels["network"] == levels["host_files"] == levels["wall"] == "enforced"

    async def test_a_command_gets_its_input_and_returns_its_output(self, sandbox):
        result = await sandbox.exec(["sh", "-c", "cat; echo oops >&2"], stdin=b"hello")
        assert (result.rc, result.signal, result.cause) == (0, None, "exit")
        assert (result.stdout, result.stderr, result.truncated) == ("hello", "oops\n", False)
        assert result.wall_s > 0

    async def test_much_input_arrives_and_unread_input_is_no_error(self, sandbox):
        data = b"x" * 1_000_000
        assert (await sandbox.exec(["wc", "-c"], stdin=data)).stdout.strip() == "1000000"
        assert (await sandbox.exec(["true"], stdin=data)).rc == 0

    async def test_an_exit_code_is_reported(self, sandbox):
        assert (await sandbox.exec(["sh", "-c", "exit 3"])).rc == 3

    async def test_a_command_that_does_not_exist_is_no_success(self, sandbox):
        assert (await sandbox.exec(["no-such-command"])).rc not in (0, None)

    async def test_a_command_without_an_exit_code_is_never_exit_code_0(self, sandbox):
        # Behaviour check 29.
        result = await sandbox.exec([*PYTHON, "import os; print('x', flush=True); os.kill(os.getpid(), 9)"])
        assert (result.rc, result.signal, result.cause, result.stdout) == (None, 9, "killed", "x\n")

    async def test_a_loop_that_ignores_sigterm_ends_at_the_wall_limit(self, sandbox):
        code = (
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\n"
            "while 1: time.sleep(1)"
        )
        result = await sandbox.exec([*PYTHON, code], limits=ExecLimits(wall_s=0.5))
        assert (result.rc, result.cause, result.stdout) == (None, "wall", "up\n")

    async def test_a_program_that_waits_on_stdin_sees_its_end(self, sandbox):
        result = await sandbox.exec([*PYTHON, "input()"])
        assert result.rc == 1
        assert "EOFError" in result.stderr

    async def test_a_daemon_that_holds_stdout_does_not_hang_exec(self, sandbox):
        # Behaviour check 30.
        marker = f"987{uuid.uuid4().int % 10**9}"
        result = await sandbox.exec(["sh", "-c", f"setsid sleep {marker} & echo done"])
        assert (result.rc, result.stdout, result.cause) == (0, "done\n", "exit")
        assert running(marker) == []

    async def test_output_is_bounded(self, sandbox):
        limits = ExecLimits(wall_s=5, output_bytes=2000)
        cut = await sandbox.exec([*PYTHON, "print('y' * 5000)"], limits=limits)
        assert (len(cut.stdout), cut.truncated, cut.rc) == (2000, True, 0)
        flood = await sandbox.exec(["yes"], limits=limits)
        assert (len(flood.stdout), flood.truncated, flood.rc, flood.cause) == (2000, True, None, "output")

    async def test_the_environment_is_empty_but_for_what_was_given(self, sandbox, monkeypatch):
        monkeypatch.setenv("HEADWAY_TEST_SECRET", "s3cret")
        result = await sandbox.exec(["env"], env={"GIVEN": "1"})
        assert "s3cret" not in result.stdout
        assert "GIVEN=1" in result.stdout.split()
        names = {line.partition("=")[0] for line in result.stdout.splitlines()}
        assert names <= {"PATH", "HOME", "LC_CTYPE", "PWD", "GIVEN", "SHLVL", "_", "OLDPWD"}
        seen = await sandbox.exec(["sh", "-c", "cat /proc/*/environ"])
        assert "s3cret" not in seen.stdout

    async def test_files_pass_in_and_out_and_last(self, sandbox):
        await sandbox.write("data/in.txt", b"one")
        result = await sandbox.exec(["sh", "-c", "cat data/in.txt; echo two > out.txt"])
        assert (result.stdout, result.stderr) == ("one", "")
        assert await sandbox.read("/work/out.txt") == b"two\n"
        assert await sandbox.read("out.txt", max_bytes=2) == b"tw"
        assert (await sandbox.exec(["cat", "out.txt"])).stdout == "two\n"

    @pytest.mark.parametrize("path", ["/etc/hostname", "../x", "a/../../x", "", "/work/../etc/hostname", "."])
    async def test_a_path_that_leads_out_is_refused(self, sandbox, path):
        with pytest.raises(SandboxError):
            await sandbox.read(path)
        with pytest.raises(SandboxError):
            await sandbox.write(path, b"x")

    async def test_planted_links_and_pipes_are_refused(self, sandbox, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("host")
        plant = f"ln -s {secret} file; ln -s {tmp_path} folder; mkfifo pipe; ln -s /proc/1/root root"
        assert (await sandbox.exec(["sh", "-c", plant])).rc == 0
        for path in ("file", "folder/secret", "pipe", f"root{secret}"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
            with pytest.raises(SandboxError):
                await sandbox.write(path, b"overwritten")
        assert secret.read_text() == "host"
        assert (await sandbox.exec(["cat", "file", f"/proc/1/root{secret}"])).stdout == ""

    async def test_the_network_is_unreachable(self, sandbox):
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        code = (
            "import socket\n"
            f"for at in (('127.0.0.1', {port}), ('1.1.1.1', 53)):\n"
            "    try: socket.create_connection(at, 1); print('open')\n"
            "    except OSError: print('refused')\n"
        )
        async with server:
            assert (await sandbox.exec([*PYTHON, code])).stdout == "refused\nrefused\n"

    async def test_two_sandboxes_share_nothing(self, provider, sandbox):
        other = await provider.create(f"o/{uuid.uuid4().hex}", {"run": f"contract-{os.getpid()}"})
        try:
            await sandbox.write("mine", b"x")
            assert (await other.exec(["ls", "-A", "/work", "/tmp"])).stdout.split() == ["/tmp:", "/work:"]
            with pytest.raises(SandboxError):
                await other.read("mine")
        finally:
            await other.terminate()

    async def test_cancelling_exec_ends_its_processes(self, sandbox):
        # Behaviour check 28, after the start.
        marker = f"986{uuid.uuid4().int % 10**9}"
        work = asyncio.create_task(sandbox.exec(["sh", "-c", f"setsid sleep {marker} & sleep {marker}"]))
        await until_running(marker)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert running(marker) == []
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    async def test_cancelling_at_any_moment_of_the_start_leaves_nothing(self, sandbox):
        # Behaviour check 28, during the start.
        marker = f"985{uuid.uuid4().int % 10**9}"
        for number in range(12):
            work = asyncio.create_task(sandbox.exec(["sleep", marker]))
            await asyncio.sleep(number * 0.003)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        assert running(marker) == []

    async def test_terminate_ends_a_running_command_and_may_be_repeated(self, provider):
        marker = f"984{uuid.uuid4().int % 10**9}"
        sandbox = await provider.create(f"t/{marker}", {"run": "terminate"})
        work = asyncio.create_task(sandbox.exec(["sleep", marker]))
        await until_running(marker)
        await sandbox.terminate()
        await sandbox.terminate()
        result = await work
        assert (result.rc, result.cause) == (None, "killed")
        assert running(marker) == []
        assert await provider.list({"run": "terminate"}) == []
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])

    async def test_live_sandboxes_are_found_by_label_and_reaped_by_run(self, provider):
        run = f"reap-{uuid.uuid4().hex}"
        made = [
            await provider.create(f"{run}/{number}", {"run": run, "n": str(number)}) for number in range(3)
        ]
        await made[0].write("file", b"x")
        assert await provider.list({"run": run, "n": "1"}) == [f"{run}/1"]
        assert len(await provider.list({"run": run})) == 3
        assert await provider.reap(run) >= 3
        assert await provider.list({"run": run}) == []
        assert await provider.reap(run) == 0

    # --- where a command runs, and what it used

    async def test_a_command_runs_where_it_is_told_to(self, sandbox):
        await sandbox.write("folder/deep/file", b"x")
        assert (await sandbox.exec(["pwd"], cwd="folder/deep")).stdout == "/work/folder/deep\n"
        assert (await sandbox.exec([*PYTHON, "import os; print(os.getcwd())"], cwd="folder")).stdout == (
            "/work/folder\n"
        )
        assert (await sandbox.exec(["pwd"])).stdout == "/work\n"
        for nowhere in ("none", "folder/deep/file", "/nowhere"):
            result = await sandbox.exec(["pwd"], cwd=nowhere)
            assert (result.rc, result.stdout, result.cause) == (126, "", "exit"), result

    tells_usage = True

    async def test_a_command_tells_what_it_used(self, sandbox):
        if not self.tells_usage:
            assert (await sandbox.exec(["true"])).usage == Usage()
            return
        code = "import hashlib; x = bytearray(40 << 20); [hashlib.sha256(x).digest() for _ in range(3)]"
        used = (await sandbox.exec([*PYTHON, code])).usage
        assert used.cpu_s > 0.02
        assert used.max_memory_bytes > 40 << 20
        idle = (await sandbox.exec(["sleep", "0.1"])).usage
        assert idle.cpu_s < used.cpu_s + 0.02
        stats = await sandbox.stats()
        assert stats.cpu_s >= used.cpu_s
        assert stats.num_processes == 0

    # --- long-lived processes

    async def until(self, sandbox, name, wanted):
        """Poll until `wanted(polled, everything it wrote so far)`."""
        said = ""
        while True:
            polled = await sandbox.poll(name)
            said += polled.stdout
            if wanted(polled, said):
                return polled, said
            await asyncio.sleep(0.02)

    async def test_a_spawned_process_outlives_commands_and_dies_with_the_sandbox(self, sandbox):
        marker = f"983{uuid.uuid4().int % 10**9}"
        script = f"read word; echo got $word; setsid sleep {marker} & sleep {marker}"
        await sandbox.spawn("server", ["sh", "-c", script], stdin=b"hello\n")
        await self.until(sandbox, "server", lambda polled, said: said == "got hello\n")
        while sleeping(marker) < 2:
            await asyncio.sleep(0.01)
        left = f"982{uuid.uuid4().int % 10**9}"
        result = await sandbox.exec(["sh", "-c", f"setsid sleep {left} & echo done"])
        assert (result.rc, result.stdout) == (0, "done\n")
        assert running(left) == []
        assert sleeping(marker) == 2
        polled = await sandbox.poll("server")
        assert (polled.running, polled.rc, polled.stdout, polled.cause) == (True, None, "", None)
        stats = await sandbox.stats()
        assert stats.num_processes >= 3
        assert stats.memory_bytes > 0
        with pytest.raises(SandboxError):
            await sandbox.spawn("server", ["true"])
        await sandbox.terminate()
        assert running(marker) == []

    async def test_kill_ends_a_spawned_process_and_what_it_started_and_nothing_else(self, sandbox):
        marks = [f"98{number}{uuid.uuid4().int % 10**9}" for number in (0, 1)]
        for mark in marks:
            await sandbox.spawn(mark, ["sh", "-c", f"echo up; (setsid sleep {mark} &); sleep {mark}"])
        for mark in marks:
            await self.until(sandbox, mark, lambda polled, said: said == "up\n")
            while sleeping(mark) < 2:
                await asyncio.sleep(0.01)
        await sandbox.kill(marks[0])
        await sandbox.kill(marks[0])
        assert (running(marks[0]), sleeping(marks[1])) == ([], 2)
        polled = await sandbox.poll(marks[0])
        assert (polled.running, polled.rc) == (False, None)
        assert polled.cause == "killed"
        assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"
        await sandbox.spawn(marks[0], ["echo", "again"])  # its name is free
        polled, said = await self.until(sandbox, marks[0], lambda polled, said: not polled.running)
        assert (polled.rc, polled.signal, said, polled.cause) == (0, None, "again\n", "exit")
        assert sleeping(marks[1]) == 2
        for call in (sandbox.poll, sandbox.kill):
            with pytest.raises(SandboxError):
                await call("nobody")

    async def test_a_spawned_process_that_ends_says_how(self, sandbox):
        await sandbox.write("folder/file", b"x")
        await sandbox.spawn("one", ["sh", "-c", "ls; echo $GIVEN; exit 3"], cwd="folder", env={"GIVEN": "y"})
        polled, said = await self.until(sandbox, "one", lambda polled, said: not polled.running)
        assert (polled.rc, polled.signal, polled.cause, said) == (3, None, "exit", "file\ny\n")
        assert (await sandbox.poll("one")).stdout == ""
        await sandbox.spawn("two", ["sh", "-c", "kill -9 $$"])
        polled, _ = await self.until(sandbox, "two", lambda polled, said: not polled.running)
        assert (polled.rc, polled.signal, polled.cause) == (None, 9, "killed")

    async def test_output_of_a_spawned_process_is_bounded_between_two_polls(self, sandbox):
        await sandbox.spawn("some", [*PYTHON, "print('y' * 5000)"], output_bytes=2000)
        await self.until(sandbox, "some", lambda polled, said: not polled.running)
        await sandbox.spawn("cut", ["sh", "-c", "printf %05000d 1; sleep 99"], output_bytes=2000)
        polled, said = await self.until(sandbox, "cut", lambda polled, said: len(said) >= 2000)
        assert (len(said), polled.truncated) == (2000, True)
        assert not (await sandbox.poll("cut")).truncated
        await sandbox.kill("cut")
        await sandbox.spawn("flood", ["yes"], output_bytes=2000)
        while (await sandbox.stats()).num_processes:
            await asyncio.sleep(0.02)
        polled = await sandbox.poll("flood")
        assert (polled.running, len(polled.stdout), polled.truncated, polled.cause) == (
            False, 2000, True, "output",
        )  # fmt: skip

    # --- pause and resume

    async def test_a_paused_sandbox_makes_no_progress_and_its_time_does_not_count(self, sandbox):
        count = "i=0; while :; do i=$((i+1)); echo $i > {name}.new; mv {name}.new {name}; sleep 0.01; done"
        await sandbox.spawn("beside", ["sh", "-c", count.format(name="beside")])
        limits = ExecLimits(wall_s=1.5)
        work = asyncio.create_task(sandbox.exec(["sh", "-c", count.format(name="command")], limits=limits))
        stats = await sandbox.stats()
        while stats.num_files < 2:
            await asyncio.sleep(0.01)
            stats = await sandbox.stats()
        await sandbox.pause()
        await sandbox.pause()
        await asyncio.sleep(0.1)  # for those that were about to end
        before = await sandbox.stats()
        await asyncio.sleep(2.0)  # more than the limit
        assert not work.done()
        after = await sandbox.stats()
        assert after.num_processes == before.num_processes
        assert after.cpu_s - before.cpu_s <= 0.021  # the clock's ticks
        with pytest.raises(SandboxError):
            await sandbox.spawn("more", ["true"])
        await sandbox.resume()
        await sandbox.resume()
        result = await work
        assert (result.cause, result.wall_s < 2.0) == ("wall", True)
        first = await sandbox.read("beside")
        while await sandbox.read("beside") == first:
            await asyncio.sleep(0.01)
        assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"

    async def test_a_paused_sandbox_can_be_copied_and_terminated(self, provider, sandbox, tmp_path):
        marker = f"976{uuid.uuid4().int % 10**9}"
        await sandbox.write("file", b"x")
        await sandbox.spawn("it", ["sleep", marker])
        await until_running(marker)
        await sandbox.pause()
        await provider.snapshot(sandbox.id, tmp_path / "snapshot")
        assert (tmp_path / "snapshot" / "file").read_bytes() == b"x"
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])
        await sandbox.terminate()
        assert running(marker) == []

    async def test_a_sandbox_that_was_lost_while_paused_is_detected_at_resume(self, provider, sandbox):
        await sandbox.write("file", b"x")
        await sandbox.pause()
        self.destroy(provider, sandbox)
        with pytest.raises(SandboxError):
            await sandbox.resume()

    # --- snapshots

    async def restored(self, provider, path):
        return await provider.restore(f"s/{uuid.uuid4().hex}", {"run": f"contract-{os.getpid()}"}, path)

    async def test_a_snapshot_holds_every_byte_and_a_restored_sandbox_goes_on_from_it(
        self, provider, sandbox, tmp_path
    ):
        path = tmp_path / "snapshots" / "one"
        data = bytes(range(256)) * 3000
        await sandbox.write("folder/deep/data", data)
        make = "mkdir empty; chmod 555 folder/deep; echo run > folder/run; chmod 755 folder/run; touch none"
        assert (await sandbox.exec(["sh", "-c", make])).rc == 0
        await provider.snapshot(sandbox.id, path)
        await sandbox.write("later", b"not in it")
        other = await self.restored(provider, path)
        try:
            assert await other.read("folder/deep/data") == data
            looks = (
                "ls -AF1 . folder; cat folder/run; test -x folder/run && echo runs; echo more >> folder/run"
            )
            shown = await other.exec(["sh", "-c", looks])
            assert (shown.rc, shown.stderr) == (0, "")
            entries = shown.stdout.split()
            assert "empty/" in entries
            assert "none" in entries
            assert "later" not in entries
            assert entries[-2:] == ["run", "runs"]
            assert await sandbox.read("folder/run") == b"run\n"  # the two share nothing
            assert await provider.alive(other.id)
        finally:
            await other.terminate()
        again = await self.restored(provider, path)  # a snapshot stays
        assert await again.read("folder/run") == b"run\n"
        await again.terminate()
        await provider.discard(path)
        await provider.discard(path)
        assert not path.exists()

    async def test_a_snapshot_keeps_links_as_links_and_follows_none(self, provider, sandbox, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("host")
        (tmp_path / "host").mkdir()
        (tmp_path / "host" / "file").write_text("host too")
        plant = f"ln -s {secret} file; ln -s {tmp_path}/host folder; ln -s nowhere broken; ln -s . loop"
        plant += "; mkfifo pipe"
        assert (await sandbox.exec(["sh", "-c", plant])).rc == 0
        path = tmp_path / "snapshot"
        await provider.snapshot(sandbox.id, path)
        assert os.readlink(path / "file") == str(secret)
        assert os.readlink(path / "folder") == f"{tmp_path}/host"
        assert sorted(os.listdir(path)) == ["broken", "file", "folder", "loop", "pipe"]
        other = await self.restored(provider, path)
        try:
            for name in ("file", "folder/file", "pipe"):
                with pytest.raises(SandboxError):
                    await other.read(name)
            links = await other.exec(["sh", "-c", "readlink broken loop folder; test -p pipe && echo fifo"])
            assert links.stdout.split() == ["nowhere", ".", f"{tmp_path}/host", "fifo"]
        finally:
            await other.terminate()
        assert secret.read_text() == "host"

    async def test_a_snapshot_of_what_cannot_be_read_or_is_huge_or_deep(self, provider, sandbox, tmp_path):
        code = (
            "import os\n"
            "os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 30 << 20)\n"
            "with open('sparse', 'r+b') as f: f.seek(20 << 20); f.write(b'x')\n"
            "open('shut', 'w').write('shut'); os.chmod('shut', 0)\n"
            "os.mkdir('closed'); open('closed/in', 'w').write('in'); os.chmod('closed', 0)\n"
            "for _ in range(900): os.mkdir('d' * 100); os.chdir('d' * 100)\n"
        )
        made = await sandbox.exec([*PYTHON, code])
        assert (made.rc, made.stderr) == (0, "")
        path = tmp_path / "snapshot"
        await provider.snapshot(sandbox.id, path)
        assert os.stat(path / "sparse").st_blocks * 512 < 1 << 20
        other = await self.restored(provider, path)
        try:
            look = (
                "import os\n"
                "print(os.stat('sparse').st_size)\n"
                "print(oct(os.stat('shut').st_mode), oct(os.stat('closed').st_mode))\n"
                "f = open('sparse', 'rb'); f.seek(20 << 20); print(f.read(2))\n"
                "os.chmod('shut', 0o400); os.chmod('closed', 0o700)\n"
                "print(open('shut').read(), open('closed/in').read())\n"
            )
            shown = await other.exec([*PYTHON, look])
            assert shown.stdout.split() == [
                str(30 << 20), "0o100000", "0o40000", "b'x\\x00'", "shut", "in",
            ]  # fmt: skip
        finally:
            await other.terminate()
        await provider.discard(path)

    async def test_a_snapshot_is_whole_or_not_there(self, provider, sandbox, tmp_path):
        await sandbox.write("file", b"x")
        taken = tmp_path / "taken"
        taken.mkdir()
        (taken / "mine").write_text("mine")
        with pytest.raises(SandboxError):
            await provider.snapshot(sandbox.id, taken)
        assert [entry.name for entry in tmp_path.iterdir() if "taken" in entry.name] == ["taken"]
        assert (taken / "mine").read_text() == "mine"
        with pytest.raises(SandboxError):
            await provider.snapshot("nobody", tmp_path / "none")
        before = await provider.list({})
        with pytest.raises(SandboxError):
            await self.restored(provider, tmp_path / "none")
        assert await provider.list({}) == before

    async def test_a_sandbox_whose_work_is_gone_is_not_alive(self, provider, sandbox):
        assert await provider.alive(sandbox.id)
        await sandbox.write("file", b"x")
        assert await provider.alive(sandbox.id)
        self.destroy(provider, sandbox)
        assert not await provider.alive(sandbox.id)
        await sandbox.terminate()
        assert not await provider.alive(sandbox.id)
        assert not await provider.alive("nobody")

    def destroy(self, provider, sandbox):
        """Take away what the sandbox lives on, as a disk that fails would."""
        raise NotImplementedError
