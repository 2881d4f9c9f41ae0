"""What sandboxes of every provider do with `serve`: subclass it and give it a `provider` fixture."""

import asyncio
import contextlib
import os
import uuid

import pytest

from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits

PYTHON = ("python3", "-I", "-S", "-B", "-c")
CONNECT = "import socket, sys\nserver = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)\n"
LONG = ExecLimits(wall_s=30)


def client(port, code):
    """Return a command that connects and then runs `code` with `server`."""
    return [*PYTHON, CONNECT + code, str(port)]


async def upper(reader, writer):
    """Answer each line in capitals."""
    async for line in reader:
        writer.write(line.upper())
        await writer.drain()


class Held:
    """A handler that counts its connections and holds them until it is cancelled."""

    def __init__(self):
        self.now = self.most = self.all = self.cancelled = 0
        self.came = asyncio.Event()

    async def __call__(self, reader, writer):
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        self.came.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1


class ServingBasics:
    """The tests that show how it is wired."""

    @pytest.fixture
    async def sandbox(self, provider):
        sandbox = await provider.create(f"s/{uuid.uuid4().hex}", {"run": f"serving-{os.getpid()}"})
        yield sandbox
        await sandbox.terminate()

    async def test_a_program_is_answered_and_each_side_sees_the_end_of_the_other(self, sandbox):
        heard = []

        async def handler(reader, writer):
            heard.append(await reader.read())  # to the client's end
            writer.write(b"answer")
            writer.write_eof()
            heard.append(await reader.read())

        code = "server.sendall(b'question'); server.shutdown(1)\nprint(server.recv(99), server.recv(99))"
        for _ in range(2):  # the port is free again
            async with sandbox.serve(8123, handler) as port:
                assert port == 8123
                assert (await sandbox.exec(client(port, code))).stdout == "b'answer' b''\n"
        assert heard == [b"question", b""] * 2
        refused = await sandbox.exec(client(port, "print('open')"))
        assert (refused.stdout, "refused" in refused.stderr) == ("", True)

    async def test_large_streams_pass_both_ways_at_the_readers_pace(self, sandbox):
        full = asyncio.Event()

        async def handler(reader, writer):
            await full.wait()
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

        code = (
            "import hashlib, select, threading\n"
            "block = bytes(range(256)) * 256; sent = 0; server.setblocking(False)\n"
            "while select.select([], [server], [], 0.2)[1]: sent += server.send(block[sent % 65536:])\n"
            "held = sent; server.setblocking(True)\n"
            "def feed():\n"
            "    global sent\n"
            "    while sent < 16 << 20: sent += server.send(block[sent % 65536:])\n"
            "    server.shutdown(1)\n"
            "threading.Thread(target=feed).start()\n"
            "got = hashlib.sha256(); size = 0\n"
            "while data := server.recv(1 << 16): got.update(data); size += len(data)\n"
            "whole = hashlib.sha256((block * (size // 65536 + 1))[:size])\n"
            "print(held < 12 << 20, size == sent, got.hexdigest() == whole.hexdigest())"
        )
        async with sandbox.serve(0, handler) as port, asyncio.TaskGroup() as group:

            async def look():
                await asyncio.sleep(0.7)  # no call of ours may come between the client's sends
                full.set()

            group.create_task(look())
            result = await sandbox.exec(client(port, code), limits=LONG)
            assert (result.stdout, result.stderr) == ("True True True\n", "")

    async def test_a_handler_that_raises_is_told_at_the_end_and_the_others_go_on(self, sandbox):
        async def handler(reader, writer):
            if await reader.readline() == b"bad\n":
                raise ZeroDivisionError("of the handler's own")
            writer.write(b"good")

        code = (
            "server.sendall(b'bad\\n')\n"
            "try: print(server.recv(99))\n"
            "except ConnectionResetError: print(b'')\n"
            "other = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); other.sendall(b'fine\\n')\n"
            "print(other.recv(99))"
        )
        with pytest.raises(ZeroDivisionError, match="own"):
            async with sandbox.serve(0, handler) as port:
                result = await sandbox.exec(client(port, code), limits=LONG)
        assert result.stdout == "b''\nb'good'\n"

        async def block():
            async with sandbox.serve(0, handler) as port:
                await sandbox.exec(client(port, code), limits=LONG)
                raise KeyError("of the block")

        with pytest.raises(KeyError) as caught:  # the block's own failure comes first, as it is
            await block()
        assert "ZeroDivisionError" in caught.value.__notes__[0]

    async def test_nobody_else_can_connect_and_nothing_else_is_reached(self, provider, sandbox):
        held = Held()
        other_server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        host_port = other_server.sockets[0].getsockname()[1]
        other = await provider.create(f"o/{uuid.uuid4().hex}", {"run": f"serving-{os.getpid()}"})
        code = (
            "import socket, sys\n"
            "for at in sys.argv[1:]:\n"
            "    try: socket.create_connection((at.split(':')[0], int(at.split(':')[1])), 1); print('open')\n"
            "    except OSError: print('closed')\n"
            "print(sum('@' in line for line in open('/proc/net/unix')))\n"
        )
        try:
            async with other_server, sandbox.serve(8124, held) as port:
                seen = [f"127.0.0.1:{host_port}", "1.1.1.1:53", f"127.0.0.2:{port}"]
                assert (await sandbox.exec([*PYTHON, code, *seen])).stdout == "closed\nclosed\nclosed\n0\n"
                assert (await other.exec([*PYTHON, code, f"127.0.0.1:{port}"])).stdout == "closed\n0\n"
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", port)
            assert held.all == 0
        finally:
            await other.terminate()


class ServingContract(ServingBasics):
    """All of them."""

    async def test_a_connection_ends_with_its_handler(self, sandbox):
        async def handler(reader, writer):
            writer.write(await reader.readexactly(2))

        code = (
            "server.sendall(b'hi'); print(server.recv(99), server.recv(99))\n"
            "import time\n"
            "try:\n"
            "    while True: server.sendall(b'x'); time.sleep(0.01)\n"
            "except OSError: print('closed')"
        )
        async with sandbox.serve(0, handler) as port:
            result = await sandbox.exec(client(port, code), limits=LONG)
        assert result.stdout == "b'hi' b''\nclosed\n"

    async def test_many_connections_at_once_are_served_side_by_side(self, sandbox):
        here = asyncio.Barrier(40)

        async def handler(reader, writer):
            line = await reader.readline()
            await here.wait()  # all of them are open
            writer.write(line.upper())

        code = (
            "import socket, sys\n"
            "them = [socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20) for _ in range(40)]\n"
            "for n, one in enumerate(them): one.sendall(b'line %d\\n' % n)\n"
            "good = [one.recv(99) == b'LINE %d\\n' % n for n, one in enumerate(them)]\n"
            "print(len(good), all(good))"
        )
        async with sandbox.serve(0, handler) as port:
            assert (await sandbox.exec([*PYTHON, code, str(port)], limits=LONG)).stdout == "40 True\n"

    async def test_a_client_that_never_reads_holds_its_own_connection_and_nothing_else(self, sandbox):
        written = []

        async def handler(reader, writer):
            if await reader.readline() == b"mute\n":
                with contextlib.suppress(ConnectionError):
                    for _ in range(1000):
                        writer.write(b"x" * 65536)
                        await writer.drain()
                        written.append(1)
            else:
                writer.write(b"y" * (4 << 20))  # and returns at once

        code = (
            "server.sendall(b'mute\\n')\n"
            "other = socket.create_connection(server.getpeername()); other.sendall(b'talk\\n'); n = 0\n"
            "while data := other.recv(1 << 16): n += len(data)\n"
            "print(n == 4 << 20)\n"
            "third = socket.create_connection(server.getpeername()); third.sendall(b'talk\\n')\n"
            "import time; time.sleep(0.3)"
        )
        async with sandbox.serve(0, handler) as port:
            assert (await sandbox.exec(client(port, code), limits=LONG)).stdout == "True\n"
        assert len(written) < 1000

    async def test_a_client_that_breaks_off_is_nobodys_fault(self, sandbox):
        async def handler(reader, writer):
            await reader.readexactly(100)

        code = (
            "import struct\n"
            "server.sendall(b'short'); server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,"
            " struct.pack('ii', 1, 0)); server.close()\n"
            "other = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); other.sendall(b'short')"
        )
        async with sandbox.serve(0, handler) as port:
            assert (await sandbox.exec(client(port, code), limits=LONG)).rc == 0

    async def test_what_was_sent_before_a_program_ended_is_heard(self, sandbox):
        heard = []

        async def handler(reader, writer):
            heard.append(await reader.read())

        code = (
            "for n in range(9):\n"
            "    other = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "    other.sendall(b'%d' % n); other.shutdown(1)\n"
            "import os; os._exit(0)"
        )
        async with sandbox.serve(0, handler) as port:
            assert (await sandbox.exec(client(port, code), limits=LONG)).rc == 0
            async with asyncio.timeout(20):
                while len(heard) < 10:  # noqa: ASYNC110 - the handler's own list
                    await asyncio.sleep(0.01)
        assert sorted(heard) == [b"", *(b"%d" % n for n in range(9))]

    async def test_connections_beyond_the_most_wait_for_their_turn(self, sandbox):
        now = most = 0

        async def handler(reader, writer):
            nonlocal now, most
            now += 1
            most = max(most, now)
            writer.write(await reader.readline())
            await writer.drain()
            await reader.read()
            now -= 1

        code = (
            "import socket, sys\n"
            "good = []\n"
            "them = [socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20) for _ in range(12)]\n"
            "for n, one in enumerate(them): one.sendall(b'%d\\n' % n)\n"
            "for n, one in enumerate(them): good.append(one.recv(99) == b'%d\\n' % n); one.close()\n"
            "print(len(good), all(good))"
        )
        async with sandbox.serve(0, handler, max_connections=3) as port:
            assert (await sandbox.exec([*PYTHON, code, str(port)], limits=LONG)).stdout == "12 True\n"
        assert most == 3

    async def test_a_wall_limit_ends_a_command_that_waits_for_a_handler(self, sandbox):
        held = Held()
        async with sandbox.serve(0, held) as port:
            result = await sandbox.exec(client(port, "server.recv(9)"), limits=ExecLimits(wall_s=0.5))
            assert (result.rc, result.cause) == (None, "wall")
            assert held.cancelled == 0  # it may have heard enough to go on
        assert (held.all, held.now, held.cancelled) == (1, 0, 1)

    async def test_handlers_are_cancelled_when_the_sandbox_ends(self, sandbox):
        held = Held()
        async with sandbox.serve(0, held) as port, asyncio.TaskGroup() as group:
            running = group.create_task(sandbox.exec(client(port, "server.recv(9)"), limits=LONG))
            await held.came.wait()
            await sandbox.terminate()
            assert (await running).cause == "killed"
            async with asyncio.timeout(20):
                while held.now:  # noqa: ASYNC110 - the handler's own count
                    await asyncio.sleep(0.01)
        assert (held.all, held.cancelled) == (1, 1)
        with pytest.raises(SandboxError):
            async with sandbox.serve(0, held):
                pass

    async def test_a_cancelled_block_leaves_a_sandbox_that_is_still_good(self, sandbox):
        held = Held()

        async def block():
            async with sandbox.serve(8125, held) as port:
                await sandbox.exec(client(port, "server.recv(9)"), limits=LONG)

        work = asyncio.create_task(block())
        await held.came.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (held.all, held.now, held.cancelled) == (1, 0, 1)
        async with sandbox.serve(8125, upper) as port:
            result = await sandbox.exec(
                client(port, "server.sendall(b'still good\\n'); print(server.recv(99))")
            )
            assert result.stdout == "b'STILL GOOD\\n'\n"

    async def test_a_paused_sandbox_says_nothing_and_goes_on_where_it_was(self, provider, sandbox):
        if not provider.pauses:
            return
        lines = []

        async def handler(reader, writer):
            while line := await reader.readline():
                lines.append(line)

        code = "import time\nwhile True: server.sendall(b'line\\n'); time.sleep(0.01)"
        async with sandbox.serve(0, handler) as port, asyncio.TaskGroup() as group:

            async def until(count):
                while len(lines) < count:  # noqa: ASYNC110 - the handler's own list
                    await asyncio.sleep(0.01)

            running = group.create_task(sandbox.exec(client(port, code), limits=LONG))
            await until(5)
            await sandbox.pause()
            await asyncio.sleep(0.2)  # what was on its way
            before = len(lines)
            await asyncio.sleep(0.3)
            assert len(lines) == before
            await sandbox.resume()
            await until(before + 5)
            running.cancel()

    async def test_two_ports_are_two_handlers(self, sandbox):
        async def lower(reader, writer):
            writer.write((await reader.readline()).lower())

        code = (
            "other = socket.create_connection(('127.0.0.1', int(sys.argv[2]))); other.sendall(b'Text\\n')\n"
            "server.sendall(b'Text\\n'); print(server.recv(99), other.recv(99))"
        )
        async with sandbox.serve(0, upper) as one, sandbox.serve(0, lower) as two:
            shown = await sandbox.exec([*client(one, code), str(two)])
            assert shown.stdout == "b'TEXT\\n' b'text\\n'\n"
            with pytest.raises(SandboxError, match="once at a time"):
                async with sandbox.serve(one, upper):
                    pass
        for port in (80, -1, 65536):
            with pytest.raises(SandboxError, match="65535"):
                async with sandbox.serve(port, upper):
                    pass

    async def test_what_is_served_lasts_over_a_reset(self, provider, sandbox, tmp_path):
        digest = await provider.snapshot(sandbox.id, tmp_path / "store", {})
        async with sandbox.serve(0, upper) as port:
            await provider.reset(sandbox.id, tmp_path / "store", digest)
            result = await sandbox.exec(client(port, "server.sendall(b'again\\n'); print(server.recv(99))"))
            assert result.stdout == "b'AGAIN\\n'\n"

    async def test_a_long_lived_process_is_served_too(self, provider, sandbox):
        if not provider.spawns:
            return
        code = "server.sendall(b'long\\n'); print(server.recv(99), flush=True); server.recv(9); print('end')"
        async with sandbox.serve(0, upper) as port:
            await sandbox.spawn("client", client(port, code))
            said = ""
            while "LONG" not in said:
                await asyncio.sleep(0.01)
                said += (await sandbox.poll("client")).stdout
        while (polled := await sandbox.poll("client")).running:
            await asyncio.sleep(0.01)
            said += polled.stdout
        assert (said + polled.stdout).endswith("end\n") or "ConnectionReset" in polled.stderr
