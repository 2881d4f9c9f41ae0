"""What is served in a sandbox, against clients, machines and descriptors that do their worst."""

# ruff: noqa: ASYNC110 - other processes are watched by looking again

import asyncio
import errno
import os
import socket
import struct
import sys

import pytest

from headway.core.clock import stopwatch
from headway.core.errors import EnvironmentFault, SandboxError
from headway.core.events import SandboxWanted
from headway.environments.lease import SandboxLease
from headway.environments.record import Record
from headway.sandbox import command_line
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.relay import HEAD, WINDOW
from headway.sandbox.serving import RATE_PER_S, Services, checked, listen
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.wire import Wire
from tests.contract.serving_contract import LONG, PYTHON, Held, client, upper


@pytest.fixture(params=["local", "bubblewrap"])
def provider(request, tmp_path):
    settings = SandboxSettings(directory=str(tmp_path / "sandboxes"), wall_s=20)
    if request.param == "bubblewrap":
        yield BubblewrapProvider(settings)
    else:
        provider = LocalProvider(settings)
        yield provider
        provider.close()


@pytest.fixture
async def sandbox(provider):
    sandbox = await provider.create("s", {"run": "serving"})
    yield sandbox
    await sandbox.terminate()


# --- clients


async def test_a_flood_of_connections_gets_its_share_and_no_more(sandbox):
    count = 0

    async def handler(reader, writer):
        nonlocal count
        count += 1

    code = (
        "import time\n"
        "end = time.monotonic() + 1.5; n = 0\n"
        "while time.monotonic() < end:\n"
        "    one = socket.socket(); one.settimeout(0.05); n += 1\n"
        "    try: one.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "    except OSError: pass\n"
        "    one.close()\n"
        "print(n)\n"
    )
    began = stopwatch()
    async with sandbox.serve(0, handler, max_connections=8) as port:
        assert (await sandbox.exec(client(port, code), limits=LONG)).rc == 0
        most = 8 + (stopwatch() - began) * RATE_PER_S + 1
    assert 0 < count <= most


async def test_clients_that_hold_on_hold_no_more_than_the_most(sandbox):
    held = Held()
    code = (
        "them = []\n"
        "for n in range(60):\n"
        "    one = socket.socket(); one.setblocking(False); one.connect_ex(server.getpeername())\n"
        "    them.append(one)\n"
        "import time; time.sleep(0.4)\n"
    )
    await sandbox.exec(["true"])
    before = os.listdir("/proc/self/fd")
    async with sandbox.serve(0, held, max_connections=5) as port:
        assert (await sandbox.exec(client(port, code), limits=LONG)).rc == 0
        assert held.most == 5
    assert (held.now, held.cancelled, held.most) == (0, held.all, 5)
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


async def test_a_program_finds_no_descriptor_of_ours(sandbox):
    look = (
        "import os\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        for fd in os.listdir(f'/proc/{pid}/fd'):\n"
        "            if 'socket' in os.readlink(f'/proc/{pid}/fd/{fd}'): print(pid, fd)\n"
        "    except OSError: pass\n"
    )
    async with sandbox.serve(0, upper):
        assert (await sandbox.exec([*PYTHON, look])).stdout == ""


async def test_a_port_that_a_program_took_cannot_be_served_and_another_can(provider, sandbox):
    taker = (
        "import socket, time\ns = socket.create_server(('127.0.0.1', 8200)); print('up', flush=True)\n"
        "time.sleep(60)"
    )
    await sandbox.spawn("taker", [*PYTHON, taker])
    while "up" not in (await sandbox.poll("taker")).stdout:
        await asyncio.sleep(0.01)
    if isinstance(provider, LocalProvider):  # elsewhere it has a network of its own
        with pytest.raises(SandboxError, match="in use"):
            async with sandbox.serve(8200, upper):
                pass
    async with sandbox.serve(0, upper) as port:
        result = await sandbox.exec(client(port, "server.sendall(b'x\\n'); print(server.recv(9))"))
        assert result.stdout == "b'X\\n'\n"


# --- descriptors


async def test_a_lack_of_descriptors_is_waited_out():
    class Short(socket.socket):
        refusals = 2

        def accept(self):
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    async def begin(service):
        listener = Short()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        service.open(listener)

    async with Services().serve(0, upper, 4, begin) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"late\n")
        assert await reader.readline() == b"LATE\n"
        writer.close()
        await writer.wait_closed()


def test_what_comes_out_of_a_sandbox_is_a_listening_socket_at_its_port_or_refused():
    listener = listen(0)
    port = listener.getsockname()[1]
    right = checked(os.dup(listener.fileno()), port)
    assert not os.get_inheritable(right.fileno())
    right.close()
    other, udp, unix = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socketpair()
    client_side = socket.create_connection(("127.0.0.1", port))
    read, write = os.pipe()
    wrong = [other.fileno(), udp.fileno(), unix[0].fileno(), client_side.fileno(), read]
    for fd, asked in [*((fd, 0) for fd in wrong), (listener.fileno(), port + 1)]:
        given = os.dup(fd)
        with pytest.raises(SandboxError):
            checked(given, asked)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(given)
    for one in (listener, other, udp, *unix, client_side):
        one.close()
    os.close(read)
    os.close(write)


# --- machines


class OnThisMachine:
    """A machine whose programs run here: relay.py as it is, without a container around it."""

    async def call(self, argv, feed, out, err, *, own=False):
        assert own
        return await command_line.run([sys.executable, *argv[1:]], feed, out, err)


class Lying:
    """A machine that says what it is told to."""

    def __init__(self, *frames, code=None):
        self.frames, self.code = frames, code

    async def call(self, argv, feed, out, err, *, own=False):
        out.feed(HEAD.pack(b"L", 0, 9999))
        await asyncio.sleep(0.01)
        for frame in self.frames:
            out.feed(frame)
        if self.code is None:
            async for _ in feed:
                pass
            return 0
        err.feed(b"no more")
        return self.code


def served(machine, handler, most=4):
    async def begin(service):
        await Wire(service, machine).begin(20)

    return Services().serve(0, handler, most, begin)


async def connected(port):
    return await asyncio.open_connection("127.0.0.1", port)


async def test_a_relay_passes_data_ends_and_closings_on():
    async def handler(reader, writer):
        data = await reader.read()
        writer.write(data[::-1])
        writer.write_eof()
        assert await reader.read() == b""
        await writer.drain()

    async with served(OnThisMachine(), handler) as port:
        for size in (0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 20 * WINDOW):
            reader, writer = await connected(port)
            data = os.urandom(size)
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == data[::-1]
            writer.close()
            await writer.wait_closed()


async def test_a_relay_holds_no_more_than_was_granted_of_a_reader_that_does_not_read():
    states = []

    async def handler(reader, writer):
        states.append(writer.transport)
        for _ in range(200):
            writer.write(b"x" * 65536)
            await writer.drain()

    async with served(OnThisMachine(), handler) as port:
        reader, writer = await connected(port)
        while not states or not states[0].get_write_buffer_size():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert states[0].get_write_buffer_size() <= 65536 * 2
        got = 0
        while data := await reader.read(1 << 16):  # it goes on when somebody reads
            got += len(data)
        assert got == 200 * 65536
        writer.close()
        await writer.wait_closed()


async def test_a_relay_takes_up_no_more_than_the_most():
    held = Held()
    async with served(OnThisMachine(), held, most=3) as port:
        them = [await connected(port) for _ in range(10)]
        await asyncio.sleep(0.3)
        assert (held.now, held.all) == (3, 3)
        for _, writer in them[:3]:
            writer.transport.abort()
    assert held.now == 0
    for _, writer in them:
        writer.transport.abort()


async def test_a_reset_and_a_handler_that_breaks_off_are_seen_through_a_relay():
    ends = []

    async def handler(reader, writer):
        ends.append(await reader.read())
        raise LookupError("broken off")

    async def block():
        async with served(OnThisMachine(), handler) as port:
            _, writer = await connected(port)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            reader, writer = await connected(port)
            writer.write_eof()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    with pytest.raises(LookupError):
        await block()
    assert ends == [b"", b""]


OPEN = HEAD.pack(b"O", 1, 0)
LIES = {
    "an unknown frame": HEAD.pack(b"?", 1, 1),
    "data of nothing that was opened": HEAD.pack(b"D", 7, 1) + b"x",
    "a huge frame": OPEN + HEAD.pack(b"D", 1, 1 << 31),
    "a number twice": OPEN + OPEN,
    "too many connections": b"".join(HEAD.pack(b"O", n, 0) for n in range(1, 6)),
    "a grant of what was not sent": OPEN + HEAD.pack(b"W", 1, 1),
    "more data than was granted": OPEN + 3 * (HEAD.pack(b"D", 1, 65536) + b"x" * 65536),
}


@pytest.mark.parametrize("lie", list(LIES))
async def test_a_machine_that_lies_ends_the_service_with_an_error(lie):
    held = Held()
    with pytest.raises(SandboxError, match="machine"):
        async with served(Lying(LIES[lie]), held):
            await asyncio.sleep(0.1)
    assert held.now == 0


async def test_a_relay_that_ends_or_cannot_listen_is_an_error_of_the_sandbox():
    with pytest.raises(SandboxError, match="no more"):
        async with served(Lying(code=1), upper):
            await asyncio.sleep(0.1)
    taken = listen(0)

    async def begin(service):
        service.port = taken.getsockname()[1]
        await Wire(service, OnThisMachine()).begin(20)

    with pytest.raises(SandboxError, match="in use"):
        async with Services().serve(0, upper, 4, begin):
            pass
    taken.close()


async def test_a_connection_that_is_told_of_after_the_end_holds_up_nothing():
    held = Held()
    open_blocks = []

    async def begin(service):
        open_blocks.append(service)

    async with Services().serve(0, held, 4, begin):
        open_blocks[0].close()
        open_blocks[0].start(held(None, None))
    assert held.now == 0


# --- environments


async def leased(provider, record=None):
    lease = SandboxLease("a/lease", "r", 0, "rollout", provider, "serving", lambda event: emit(event), record)

    def emit(event):
        if isinstance(event, SandboxWanted):
            lease.grant()

    return lease


async def test_an_environment_serves_its_lazy_sandbox(provider):
    lease = await leased(provider)
    async with lease.serve(0, upper) as port:
        result = await lease.exec(client(port, "server.sendall(b'lazy\\n'); print(server.recv(9))"))
    assert result.stdout == "b'LAZY\\n'\n"
    await lease.release(by_itself=True)
    with pytest.raises(SandboxError):
        async with lease.serve(0, upper):
            pass


async def test_a_rollout_with_a_record_cannot_serve_and_is_told_what_to_declare(provider):
    lease = await leased(provider, Record(kept=True))
    with pytest.raises(EnvironmentFault, match="restart"):
        async with lease.serve(0, upper):
            pass
    assert not lease.held  # nothing was made for it
