"""What every sandbox provider does. Subclass SandboxContract and give it a `provider` fixture."""

# ruff: noqa: ASYNC110 - other processes are watched by looking again

import asyncio
import gzip
import io
import os
import tarfile
import uuid

import pytest

from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits, Usage
from headway.sandbox.store import Store
from headway.sandbox.tars import pack_host, unpack_to_host

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


def archive(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def file(name, data=b"x"):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return member, data


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def held_in(store):
    """Return what the small files in a store hold, each once."""
    return sorted(path.read_bytes() for path in (store / "packs").iterdir())


def files_of(store):
    """Return how many files a store of snapshots has, its lock apart."""
    return sum(len(files) for _, _, files in os.walk(store)) - (store / "lock").exists()


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

    uid = "1000"  # of the work folder's files, as programs see it

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

    @pytest.mark.parametrize("word", ["a\0b", "\ud800", "x" * 1_200_000], ids=["nul", "surrogate", "long"])
    async def test_a_command_line_that_cannot_be_run_fails_as_a_command(self, sandbox, word):
        """A model may have written it: of the infrastructure's failures it may make none."""
        for argv, cwd in ((["echo", word], ""), ([*PYTHON, f"#{word}"], ""), (["pwd"], word)):
            result = await sandbox.exec(argv, cwd=cwd)
            assert (result.signal, result.stdout, result.cause) == (None, "", "exit"), result
            assert result.rc in (126, 127), result
        assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"

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

    # --- trees

    async def test_a_tree_passes_in_and_out(self, sandbox, tmp_path):
        source = tmp_path / "source"
        (source / "a" / "b").mkdir(parents=True)
        (source / "a" / "run").write_bytes(b"#!/bin/sh\necho ran\n")
        (source / "a" / "run").chmod(0o755)
        (source / "a" / "b" / "data").write_bytes(bytes(range(256)) * 500)
        (source / "a" / "link").symlink_to("run")
        os.utime(source / "a" / "run", ns=(10**18, 10**18))
        await sandbox.upload("in/put", pack_host(source))
        await sandbox.upload(".", pack_host(source / "a" / "run"))
        look = "in/put/a/link; ./run; stat -c %Y in/put/a/run; stat -c %u,%a in/put in/put/a/b/data"
        shown = await sandbox.exec(["sh", "-c", look])
        assert shown.stderr == ""
        assert shown.stdout.split() == ["ran", "ran", "1000000000", f"{self.uid},755", f"{self.uid},644"]
        await sandbox.exec(["sh", "-c", "echo + >> run"])
        await sandbox.upload("/work", pack_host(source / "a" / "run"))  # what is there is replaced
        assert await sandbox.read("run") == b"#!/bin/sh\necho ran\n"
        target = tmp_path / "new" / "target"
        left_out = unpack_to_host(await sandbox.download("in"), target)
        assert left_out == ["put/a/link"]  # a reader on the host would follow it
        assert (target / "put" / "a" / "b" / "data").read_bytes() == bytes(range(256)) * 500
        assert sorted(path.name for path in target.rglob("*")) == ["a", "b", "data", "put", "run"]
        with pytest.raises(SandboxError):
            unpack_to_host(await sandbox.download("in"), target)
        unpack_to_host(await sandbox.download("in/put/a/run"), tmp_path / "one")
        assert os.listdir(tmp_path / "one") == ["run"]

    async def test_a_download_follows_nothing_and_is_bounded(self, sandbox, tmp_path):
        (tmp_path / "secret").write_text("the host's")
        code = (
            "import os\n"
            "os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 30 << 20)\n"
            "os.mkdir('many')\n"
            "for n in range(100): open(f'many/{n}', 'w').close()\n"
            "os.makedirs('tree/closed'); open('tree/closed/in', 'w').close()\n"
            "os.chmod('tree/closed', 0)\n"
            f"os.symlink({str(tmp_path)!r}, 'tree/link'); os.symlink({str(tmp_path)!r}, 'link')\n"
            "os.mkfifo('tree/pipe')\n"
            "os.mkdir('deep'); os.chdir('deep')\n"
            "for _ in range(300): os.mkdir('d'); os.chdir('d')\n"
        )
        made = await sandbox.exec([*PYTHON, code])
        assert (made.rc, made.stderr) == (0, "")
        for path in ("link", "link/secret", "tree/pipe", "nothing", "../x", "/etc", "deep"):
            with pytest.raises(SandboxError):
                await sandbox.download(path)
        with pytest.raises(SandboxError, match="bytes"):
            await sandbox.download("sparse", max_bytes=20 << 20)
        with pytest.raises(SandboxError, match="files"):
            await sandbox.download("many", max_files=50)
        archive = await sandbox.download("tree")
        assert b"the host's" not in archive
        left_out = unpack_to_host(archive, tmp_path / "target")
        assert left_out == ["link", "pipe"]
        assert (await sandbox.exec(["stat", "-c", "%a", "tree/closed"])).stdout == "0\n"

    async def test_an_upload_stays_where_it_is_put(self, sandbox, tmp_path):
        (tmp_path / "host").mkdir()
        plant = f"ln -s {tmp_path}/host out; mkdir folder; mkfifo pipe; ln -s {tmp_path}/host/file file"
        await sandbox.exec(["sh", "-c", plant])
        for name in ("../x", "/x", "a/../../x", "out/x", "folder"):
            with pytest.raises(SandboxError):
                await sandbox.upload(".", archive(file(name)))
        with pytest.raises(SandboxError):
            await sandbox.upload("out", archive(file("x")))
        with pytest.raises(SandboxError):  # through a link that the same archive makes
            await sandbox.upload(".", archive(link("here", str(tmp_path / "host")), file("here/x")))
        for name, target in (("hard", "../../etc/passwd"), ("hard", "out"), ("hard", "nothing")):
            with pytest.raises(SandboxError):
                await sandbox.upload(".", archive(link(name, target, tarfile.LNKTYPE)))
        device = tarfile.TarInfo("device")
        device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
        await sandbox.upload(".", archive((device, b""), file("pipe"), file("file"), file("a/b/c")))
        await sandbox.upload(".", archive(link("hard", "a/b/c", tarfile.LNKTYPE)))
        assert (await sandbox.exec(["sh", "-c", "cat pipe file hard; echo; ls"])).stdout.split() == [
            "xxx", "a", "file", "folder", "hard", "here", "out", "pipe",
        ]  # fmt: skip
        assert os.listdir(tmp_path / "host") == []
        with pytest.raises(SandboxError):
            await sandbox.upload(".", archive(*(file(f"f{number}") for number in range(3000))))
        with pytest.raises(SandboxError):
            await sandbox.upload(".", archive(file("big", b"x" * (40 << 20))))
        for junk in (b"", b"junk" * 1000, gzip.compress(archive(file("x")))):
            with pytest.raises(SandboxError):
                await sandbox.upload(".", junk)

    async def test_one_is_ended_by_its_id_and_labels(self, provider, sandbox):
        run = f"end-{uuid.uuid4().hex}"
        one, other = [await provider.create(f"{run}/{n}", {"run": run}) for n in range(2)]
        await one.write("file", b"x")
        await other.write("file", b"x")
        assert await provider.end(one.id, {"run": run})
        assert not await provider.end(one.id, {"run": run})
        assert not await provider.end("nobody", {"run": run})
        assert await provider.list({"run": run}) == [other.id]
        assert not await provider.alive(one.id)
        assert await other.read("file") == b"x"
        assert await provider.end(other.id, {"run": run})

    # --- where a command runs, and what it used

    async def test_a_command_runs_where_it_is_told_to(self, sandbox):
        await sandbox.write("folder/deep/file", b"x")
        assert (await sandbox.exec(["pwd"], cwd="folder/deep")).stdout == "/work/folder/deep\n"
        assert (await sandbox.exec([*PYTHON, "import os; print(os.getcwd())"], cwd="folder")).stdout == (
            "/work/folder\n"
        )
        assert (await sandbox.exec(["pwd"])).stdout == "/work\n"
        for nowhere in ("none", "folder/deep/file", "/nowhere"):
            for argv in (["pwd"], [*PYTHON, "print(1)"]):
                result = await sandbox.exec(argv, cwd=nowhere)
                assert (result.rc, result.stdout, result.cause) == (126, "", "exit"), result
        assert await sandbox.read("folder/deep/file") == b"x"

    async def test_a_work_folder_that_a_program_has_closed_is_open_for_the_next(
        self, provider, sandbox, tmp_path
    ):
        """Nobody but the infrastructure may make a sandbox unusable: that would hide a sample."""
        await sandbox.write("file", b"x")
        if (await sandbox.exec(["chmod", "700", "."])).rc:
            pytest.skip("the work folder is not the program's to close")

        async def closed(mode):
            result = await sandbox.exec([*PYTHON, f"import os; os.chmod('.', {mode})"])
            assert (result.rc, result.cause) == (0, "exit"), result

        for mode in (0, 0o200, 0o600):
            for argv in (["cat", "file"], [*PYTHON, "print(open('file').read(), end='')"]):
                await closed(mode)
                assert (await sandbox.exec(argv)).stdout == "x"
            await closed(mode)
            assert await sandbox.read("file") == b"x"
            await closed(mode)
            await sandbox.write("other", b"y")
            await closed(mode)
            assert len(await sandbox.download(".")) > 1024
            await closed(mode)
            await provider.snapshot(sandbox.id, tmp_path / "store", {})
            await closed(mode)
            fork = await provider.fork(sandbox.id, f"f/{uuid.uuid4().hex}", {"run": "r"})
            assert await fork.read("other") == b"y"
            await fork.terminate()
        await closed(0)
        assert await provider.alive(sandbox.id)

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
        assert after.cpu_s - before.cpu_s <= 0.021, (before, after)  # the clock's ticks
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

    @pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.01, 0.03])
    async def test_a_command_that_starts_while_its_sandbox_is_paused_makes_no_progress(
        self, sandbox, delay_s
    ):
        await sandbox.write("file", b"x")
        before = (await sandbox.stats()).num_files
        command = sandbox.exec(["sh", "-c", "sleep 0.3; echo > mark"])
        async with asyncio.TaskGroup() as group:
            work = group.create_task(asyncio.wait([asyncio.ensure_future(command)]))
            await asyncio.sleep(delay_s)
            await sandbox.pause()
            await asyncio.sleep(0.6)
            assert (await sandbox.stats()).num_files == before
            await sandbox.resume()
        (done,), _ = work.result()
        if done.exception() is None:
            assert (await sandbox.read("mark")) == b"\n"
        else:  # the pause was first
            assert "paused" in str(done.exception())

    async def test_a_paused_sandbox_can_be_copied_and_terminated(self, provider, sandbox, tmp_path):
        marker = f"976{uuid.uuid4().int % 10**9}"
        await sandbox.write("file", b"x")
        await sandbox.spawn("it", ["sleep", marker])
        await until_running(marker)
        await sandbox.pause()
        await provider.snapshot(sandbox.id, tmp_path / "store", {})
        assert held_in(tmp_path / "store") == [b"x"]
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

    async def restored(self, provider, store, digest):
        labels = {"run": f"contract-{os.getpid()}"}
        return await provider.restore(f"s/{uuid.uuid4().hex}", labels, store, digest)

    async def test_a_snapshot_holds_every_byte_and_a_restored_sandbox_goes_on_from_it(
        self, provider, sandbox, tmp_path
    ):
        store = tmp_path / "snapshots"
        data = bytes(range(256)) * 3000
        await sandbox.write("folder/deep/data", data)
        make = "mkdir empty; chmod 555 folder/deep; echo run > folder/run; chmod 755 folder/run; touch none"
        make += "; touch -d @1000000000 folder/run empty"
        assert (await sandbox.exec(["sh", "-c", make])).rc == 0
        digest = await provider.snapshot(sandbox.id, store, {"turn": "3", "version": "0.7"})
        assert Store(store).snapshots()[digest].labels == {"turn": "3", "version": "0.7"}
        await sandbox.write("later", b"not in it")
        other = await self.restored(provider, store, digest)
        try:
            assert await other.read("folder/deep/data") == data
            looks = (
                "stat -c %Y folder/run empty; ls -AF1 . folder; cat folder/run; test -x folder/run && "
                "echo runs; echo more >> folder/run"
            )
            shown = await other.exec(["sh", "-c", looks])
            assert (shown.rc, shown.stderr) == (0, "")
            entries = shown.stdout.split()
            assert entries[:2] == ["1000000000"] * 2
            assert "empty/" in entries
            assert "none" in entries
            assert "later" not in entries
            assert entries[-2:] == ["run", "runs"]
            assert await sandbox.read("folder/run") == b"run\n"  # the two share nothing
            assert await provider.alive(other.id)
        finally:
            await other.terminate()
        again = await self.restored(provider, store, digest)  # a snapshot stays
        assert await again.read("folder/run") == b"run\n"
        await again.terminate()
        await provider.discard(store, digest)
        await provider.discard(store, digest)
        assert files_of(store) == 0
        with pytest.raises(SandboxError):
            await self.restored(provider, store, digest)

    async def test_equal_states_are_stored_once_and_a_change_is_never_missed(
        self, provider, sandbox, tmp_path
    ):
        store = tmp_path / "snapshots"
        await sandbox.exec(["sh", "-c", "echo one > a; echo two > b; cp a c"])
        first = await provider.snapshot(sandbox.id, store, {})
        assert await provider.snapshot(sandbox.id, store, {}) == first
        assert await provider.snapshot(sandbox.id, store, {"turn": "1"}) != first
        assert held_in(store) == [b"one\ntwo\n"]
        assert len(os.listdir(store / "trees")) == 1
        for number in range(8):  # of the same size, at once: times may be the same
            await sandbox.write("a", b"%03d\n" % number)
            digest = await provider.snapshot(sandbox.id, store, {})
            other = await self.restored(provider, store, digest)
            assert await other.read("a") == b"%03d\n" % number
            await other.terminate()
        await provider.discard(store, first)
        again = await self.restored(provider, store, digest)  # what it shares with the other is there
        assert await again.read("b") == b"two\n"
        await again.terminate()

    async def test_a_fork_goes_its_own_way(self, provider, sandbox):
        await sandbox.exec(["sh", "-c", "mkdir d; echo one > d/f; ln -s f d/l"])
        labels = {"run": f"contract-{os.getpid()}"}
        fork = await provider.fork(sandbox.id, f"f/{uuid.uuid4().hex}", labels)
        try:
            assert (await fork.exec(["sh", "-c", "cat d/l; echo two > d/f; rm d/l"])).stdout == "one\n"
            assert (await sandbox.exec(["sh", "-c", "cat d/l; echo 3 > new"])).stdout == "one\n"
            assert (await fork.exec(["ls", "-A", ".", "d"])).stdout.split() == [".:", "d", "d:", "f"]
            with pytest.raises(SandboxError):
                await provider.fork(sandbox.id, fork.id, labels)
        finally:
            await fork.terminate()
        before = await provider.list({})
        with pytest.raises(SandboxError):
            await provider.fork("nobody", "new", labels)
        assert await provider.list({}) == before

    async def test_a_reset_takes_back_whatever_was_done(self, provider, sandbox, tmp_path):
        await sandbox.write("d/f", b"one")
        digest = await provider.snapshot(sandbox.id, tmp_path / "store", {})
        await sandbox.exec(["sh", "-c", "rm -r d; echo x > e"])
        with pytest.raises(SandboxError):
            await provider.reset(sandbox.id, tmp_path / "store", "0" * 64)
        assert await sandbox.read("e") == b"x\n"
        await provider.reset(sandbox.id, tmp_path / "store", digest)
        assert (await sandbox.exec(["sh", "-c", "cat d/f; ls -A"])).stdout == "oned\n"
        assert await provider.alive(sandbox.id)
        await sandbox.write("d/f", b"two")
        later = await provider.snapshot(sandbox.id, tmp_path / "store", {})
        await provider.reset(sandbox.id, tmp_path / "store", digest)
        assert await sandbox.read("d/f") == b"one"
        assert later != await provider.snapshot(sandbox.id, tmp_path / "store", {}) == digest

    async def test_a_long_lived_process_stands_still_for_a_snapshot_and_ends_with_a_reset(
        self, provider, sandbox, tmp_path
    ):
        if not provider.spawns:
            pytest.skip("no long-lived processes")
        marker = f"975{uuid.uuid4().int % 10**9}"
        await sandbox.write("pair", b"0 0")
        code = (
            "import mmap, time\n"
            "f = open('map', 'w+b'); f.write(bytes(4096)); f.flush()\n"
            "m, n = mmap.mmap(f.fileno(), 4096), 0\n"
            "while True: n += 1; m[:4] = n.to_bytes(4, 'big'); time.sleep(0.01)\n"
        )
        await sandbox.spawn("writer", ["python3", "-I", "-S", "-c", f"{code}# {marker}"])
        await sandbox.spawn("it", ["sleep", marker])
        await until_running(marker)
        seen = set()
        for _ in range(4):
            await asyncio.sleep(0.1)
            digest = await provider.snapshot(sandbox.id, tmp_path / "store", {})
            other = await self.restored(provider, tmp_path / "store", digest)
            seen.add(await other.read("map"))
            await other.terminate()
        assert len(seen) == 4  # what is written through a mapping may leave a file's times alone
        assert (await sandbox.poll("it")).running
        await provider.reset(sandbox.id, tmp_path / "store", digest)
        assert running(marker) == []
        with pytest.raises(SandboxError):
            await sandbox.poll("it")
        assert await sandbox.read("pair") == b"0 0"
        await sandbox.spawn("it", ["true"])

    async def test_a_snapshot_keeps_links_as_links_and_follows_none(self, provider, sandbox, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("the host's")
        (tmp_path / "host").mkdir()
        (tmp_path / "host" / "file").write_text("the host's too")
        plant = f"ln -s {secret} file; ln -s {tmp_path}/host folder; ln -s nowhere broken; ln -s . loop"
        plant += "; mkfifo pipe; echo x > one; ln one two; chmod 4755 one"
        assert (await sandbox.exec(["sh", "-c", plant])).rc == 0
        store = tmp_path / "snapshots"
        digest = await provider.snapshot(sandbox.id, store, {})
        assert held_in(store) == [b"x\n"]
        other = await self.restored(provider, store, digest)
        try:
            for name in ("file", "folder/file", "pipe"):
                with pytest.raises(SandboxError):
                    await other.read(name)
            look = "readlink broken loop folder file; test -p pipe && echo fifo; stat -c %a,%h one two"
            shown = await other.exec(["sh", "-c", look])
            links = ["nowhere", ".", f"{tmp_path}/host", str(secret), "fifo"]
            assert shown.stdout.split() == [*links, "755,2", "755,2"]
        finally:
            await other.terminate()
        assert secret.read_text() == "the host's"

    async def test_many_names_of_one_file_take_no_more_than_it_and_stay_one(
        self, provider, sandbox, tmp_path
    ):
        """Else a program could make a snapshot of its sandbox that no sandbox has room for."""
        code = (
            "import os\n"
            "open('file', 'wb').write(os.urandom(8 << 20))\n"
            "os.makedirs('a/closed/b')\n"
            "for n in range(100): os.link('file', f'z{n}'); os.link('file', f'a/closed/b/{n}')\n"
            "open('a/closed/only', 'w').write('x'); os.link('a/closed/only', 'a/only')\n"
            "os.link('a/closed/only', 'b'); os.chmod('a/closed', 0)\n"
        )
        made = await sandbox.exec([*PYTHON, code])
        if made.cause == "disk":
            pytest.skip("each name of a file counts as one here")
        assert (made.rc, made.stderr) == (0, "")
        store = tmp_path / "snapshots"
        digest = await provider.snapshot(sandbox.id, store, {})
        assert sum(path.stat().st_blocks * 512 for path in store.rglob("*")) < 9 << 20
        others = [
            await self.restored(provider, store, digest),
            await provider.fork(sandbox.id, f"f/{uuid.uuid4().hex}", {"run": "r"}),
        ]
        try:
            for other in others:
                look = "stat -c %h,%a file z7 b; stat -c %a a/closed; chmod 700 a/closed; cd a/closed"
                shown = await other.exec(
                    ["sh", "-c", f"{look}; stat -c %h b/9 only; cat only; cmp b/0 ../../z9"]
                )
                assert shown.stdout.split() == ["201,644", "201,644", "3,644", "0", "201", "3", "x"]
            assert await provider.snapshot(others[1].id, store, {}) != ""
        finally:
            for other in others:
                await other.terminate()

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
        store = tmp_path / "snapshots"
        digest = await provider.snapshot(sandbox.id, store, {})
        assert sum(path.stat().st_blocks * 512 for path in store.rglob("*")) < 1 << 20
        other = await self.restored(provider, store, digest)
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
        await provider.discard(store, digest)

    async def test_a_snapshot_is_whole_or_not_there(self, provider, sandbox, tmp_path):
        await sandbox.write("file", b"x")
        taken = tmp_path / "taken"
        taken.write_text("mine")
        with pytest.raises(SandboxError):
            await provider.snapshot(sandbox.id, taken, {})
        assert taken.read_text() == "mine"
        with pytest.raises(SandboxError):
            await provider.snapshot("nobody", tmp_path / "none", {})
        before = await provider.list({})
        with pytest.raises(SandboxError):
            await self.restored(provider, tmp_path / "none", "0" * 64)
        assert await provider.list({}) == before
        assert not (tmp_path / "none").exists()

    @pytest.mark.parametrize("kind", ["packs", "places", "trees", "snapshots"])
    @pytest.mark.parametrize("damage", ["other", "short", "gone"])
    async def test_a_damaged_snapshot_is_refused(self, provider, sandbox, tmp_path, kind, damage):
        await sandbox.write("file", b"x" * 100)
        digest = await provider.snapshot(sandbox.id, tmp_path, {})
        (path,) = (tmp_path / kind).iterdir()
        data = path.read_bytes()
        path.unlink()
        if damage != "gone":
            path.write_bytes(data[:-1] + b"?" * (damage == "other"))
        before = await provider.list({})
        with pytest.raises(SandboxError):
            await self.restored(provider, tmp_path, digest)
        assert await provider.list({}) == before

    async def test_a_sandbox_whose_work_is_gone_is_not_alive(self, provider, sandbox, tmp_path):
        assert await provider.alive(sandbox.id)
        await sandbox.write("file", b"x")
        assert await provider.alive(sandbox.id)
        self.destroy(provider, sandbox)
        assert not await provider.alive(sandbox.id)
        with pytest.raises(SandboxError):  # what is lost is never stored as if it were whole
            await provider.snapshot(sandbox.id, tmp_path / "store", {})
        with pytest.raises(SandboxError):
            await provider.fork(sandbox.id, "fork", {})
        await sandbox.terminate()
        assert not await provider.alive(sandbox.id)
        assert not await provider.alive("nobody")

    def destroy(self, provider, sandbox):
        """Take away what the sandbox lives on, as a disk that fails would."""
        raise NotImplementedError
