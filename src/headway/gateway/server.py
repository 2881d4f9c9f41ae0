"""The OpenAI-compatible server of an environment worker's rollouts.

Consumes connections: those of its own listener, and those that somebody else accepted (`Endpoint.handler`,
for sandboxes). A connection waits for its client's next request; a request waits for the policy's answer, and
is cut short when its client leaves or its rollout ends. A client that waits long is told so (`keep_alive_s`).
`run` owns one TaskGroup and waits until `close`.

Invariants: a key opens one rollout and nothing else; what the policy sampled is recorded by the rollout
before a client sees it; nothing is asked of a rollout after `close_session` has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import HeadwayError
from headway.core.protocols import Endpoint
from headway.gateway import writing
from headway.gateway.calls import listed, read_call
from headway.gateway.faults import ApiError, ended, told
from headway.gateway.http import Exchange
from headway.gateway.sessions import Session, Sessions
from headway.gateway.settings import GatewaySettings
from headway.gateway.waiting import ClientGoneError, awaited

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headway.core.protocols import Completions
    from headway.gateway.http import Request

_log = logging.getLogger("headway.gateway")
_PORTS = range(20_000, 30_000)  # a worker that is started anew tries to have its port again
_HOST = "127.0.0.1"
_LEAST_BYTES = 1 << 20
_BYTES_A_TOKEN = 512  # of a body, generously: reading one holds up all rollouts of this worker


class Gateway:
    """Serves any number of rollouts."""

    def __init__(
        self, settings: GatewaySettings | None = None, *, name: str = "headway", folder: Path | None = None
    ) -> None:
        """Serve nobody yet.

        Args:
            settings: `[gateway]`.
            name: of this worker within the run, the same one after it is started anew.
            folder: of its socket, where it listens at one.
        """
        self._settings = settings or GatewaySettings()
        self._name = name
        self._folder = folder
        self._sessions = Sessions()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._starting = asyncio.Lock()
        self._group: asyncio.TaskGroup | None = None
        self._closing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._num_answers = 0
        self.listening = asyncio.Event()

    # --- its life

    async def run(self) -> None:
        """Serve until `close`."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.listening.set()
            await self._closing.wait()
            if self._server is not None:
                self._server.close()
            for writer in self._writers:
                writer.transport.abort()
        self._group = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[Gateway]:
        """Serve for the length of a block; what that raises is raised as it is."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run())
            try:
                yield self
            except Exception as error:
                failure = error
            finally:
                self.close()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Let `run` end; connections are cut."""
        self._closing.set()

    async def open(self, completions: Completions, name: str) -> Endpoint:
        """Serve a rollout from now on; see `EndpointServer`."""
        await self.listening.wait()
        async with self._starting:
            if self._server is None:
                self._server = await self._listen()
        session = Session(completions, name)
        self._sessions.add(session)
        base_url = f"http://{_HOST}:{self._port}/v1" if self._port else "http://localhost/v1"
        return Endpoint(base_url, session.key, self._port, partial(self._connected, session))

    async def close_session(self, endpoint: Endpoint, why: str) -> None:
        """Serve a rollout no longer."""
        await self._sessions.end(endpoint.key, why)

    @property
    def path(self) -> str:
        """The socket at which it listens, "" where it listens at a port."""
        return str((self._folder or Path()) / f"{self._name}.sock") if self._settings.listen == "unix" else ""

    async def _listen(self) -> asyncio.Server:
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(Path(self.path).unlink)  # of this worker's last life
            return await asyncio.start_unix_server(self._accept, self.path)
        wanted = _PORTS[zlib.crc32(self._name.encode()) % len(_PORTS)]
        try:
            server = await asyncio.start_server(self._accept, _HOST, wanted)
        except OSError:
            server = await asyncio.start_server(self._accept, _HOST, 0)
        self._port = server.sockets[0].getsockname()[1]
        return server

    # --- connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._group is None or self._closing.is_set():
            writer.close()
        else:
            self._group.create_task(self._connected(None, reader, writer))

    async def _connected(
        self, bound: Session | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection; `bound` is the only session that it may reach, None to go by the key."""
        self._writers.add(writer)
        exchange = Exchange(reader, writer, self._longest_bytes(bound))
        try:
            while True:
                try:
                    request = await exchange.receive(self._settings.request_timeout_s)
                    if request is None:
                        return
                    began = stopwatch()
                    await self._serve(exchange, request, bound, began)
                except ApiError as error:
                    if exchange.begun:
                        exchange.abort()
                        return
                    if not exchange.may_respond:
                        return
                    await exchange.respond(error.status, writing.dumped(error.body))
                    if not exchange.goes_on:
                        await exchange.linger()
                if not exchange.goes_on:
                    return
        except ClientGoneError:
            return
        except Exception:  # one connection's fault must not be the end of all rollouts of this worker
            _log.exception("a connection was cut off")
            exchange.abort()
        finally:
            self._writers.discard(writer)
            writer.close()

    def _longest_bytes(self, bound: Session | None) -> int:
        """Return how long a body may be: out of a sandbox, no longer than a context could hold."""
        most = self._settings.max_request_mb << 20
        if bound is None:
            return most
        return min(most, max(_LEAST_BYTES, bound.completions.max_context_tokens * _BYTES_A_TOKEN))

    async def _serve(self, exchange: Exchange, request: Request, bound: Session | None, began: float) -> None:
        """Answer one request.

        Raises ApiError for what is not answered, ClientGoneError when nobody is there to be told.
        """
        session = bound or self._sessions.of(request)
        if session.why:
            raise ended(session.why)
        of = session.completions
        if request.method == "GET" and (known := listed(request.path, of)) is not None:
            await exchange.respond(200, writing.dumped(known))
            return
        assert self._group is not None
        try:
            call = read_call(request, session, self._settings)
        except HeadwayError as error:  # of a prompt that cannot be encoded
            raise told(error, of.max_context_tokens) from error
        asked_at = stopwatch()
        done = session.kept(call.digest)
        if done is None:
            done = await awaited(self._group, exchange, session, call, self._settings.keep_alive_s)
        policy_s = stopwatch() - asked_at
        self._num_answers += 1
        name = f"{call.kind}-{session.name}-{done.turn}-{self._num_answers}"
        whole = call.written(done, call.asked, of, name)
        if call.stream:
            if not exchange.begun:
                exchange.begin(call.content_type)
            for data in writing.events(whole, call.asked):
                exchange.part(data)
            await exchange.end()
        elif exchange.begun:
            exchange.part(writing.dumped(whole))
            await exchange.end()
        else:
            data = writing.dumped(whole)
            spent_s = stopwatch() - began
            timing = f"policy;dur={policy_s * 1000:.3f}, total;dur={spent_s * 1000:.3f}"
            await exchange.respond(200, data, timing)
