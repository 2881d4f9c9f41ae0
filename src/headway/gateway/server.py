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
import hashlib
import logging
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headway.core.clock import stopwatch
from headway.core.protocols import Endpoint
from headway.gateway import reading, writing
from headway.gateway.faults import ApiError, ended, told
from headway.gateway.http import Exchange
from headway.gateway.sessions import Session, Sessions
from headway.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from headway.core.protocols import Completion, Completions
    from headway.gateway.http import Request
    from headway.gateway.reading import Asked, Json

    Written = Callable[[Completion, Asked, Completions, str], Json]

_log = logging.getLogger("headway.gateway")
_PORTS = range(20_000, 30_000)  # a worker that is started anew tries to have its port again
_HOST = "127.0.0.1"
_GO_ON = {"application/json": b" ", "text/event-stream": b": waiting\n\n"}


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


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
        exchange = Exchange(reader, writer, self._settings.max_request_mb << 20)
        try:
            while True:
                try:
                    request = await exchange.receive()
                    if request is None:
                        return
                    began = stopwatch()
                    await self._serve(exchange, request, bound, began)
                except ApiError as error:
                    if exchange.begun:
                        exchange.abort()
                        return
                    await exchange.respond(error.status, writing.dumped(error.body))
                if not exchange.goes_on:
                    return
        except ClientGoneError:
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, exchange: Exchange, request: Request, bound: Session | None, began: float) -> None:
        """Answer one request; what the rollout raises goes to the client.

        Raises ApiError for what is not answered, ClientGoneError when nobody is there to be told.
        """
        session = bound or self._sessions.of(request)
        if session.why:
            raise ended(session.why)
        of = session.completions
        path = request.path.rstrip("/")
        if path == "/v1/models" and request.method == "GET":
            body = writing.models("policy", of.max_context_tokens)
            await exchange.respond(200, writing.dumped(body))
            return
        if path.startswith("/v1/models/") and request.method == "GET":
            body = writing.model(path.removeprefix("/v1/models/"), of.max_context_tokens)
            await exchange.respond(200, writing.dumped(body))
            return
        routes = {"/v1/chat/completions", "/v1/completions", "/inference/v1/generate"}
        if path not in routes:
            known = ", ".join(f"POST {each}" for each in sorted(routes))
            raise ApiError(
                404,
                f"there is no {request.method} {path}; there are {known} and GET /v1/models",
                code="not_found",
            )
        if request.method != "POST":
            raise ApiError(405, f"{path} takes POST", code="method_not_allowed")
        await self._answer(exchange, request, session, path, began)

    async def _answer(
        self, exchange: Exchange, request: Request, session: Session, path: str, began: float
    ) -> None:
        of = session.completions
        body = reading.parsed(request.body)
        if isinstance(sampling := body.get("sampling_params"), dict):
            body |= cast("Json", sampling)
        asked = reading.asked(body, self._settings)
        written: Written
        stream = asked.stream
        match path:
            case "/v1/chat/completions":
                kind, written = "chatcmpl", writing.chat
                work = of.complete(
                    reading.messages(body),
                    tools=reading.tools(body),
                    max_tokens=asked.max_tokens,
                    stop=asked.stop,
                )
            case "/v1/completions":
                kind, written = "cmpl", writing.text
                work = of.complete_ids(_prompt(body, of), max_tokens=asked.max_tokens, stop=asked.stop)
            case _:
                kind, written, stream = "generate", writing.generated, False
                work = of.complete_ids(
                    reading.ids("token_ids", body.get("token_ids")),
                    max_tokens=asked.max_tokens,
                    stop=asked.stop,
                )
        content_type = "text/event-stream" if stream else "application/json"
        digest = hashlib.blake2b(path.encode() + request.body, digest_size=16).digest()
        asked_at = stopwatch()
        done = session.kept(digest)
        if done is None:
            done = await self._awaited(exchange, session, work, content_type, digest)
        else:
            work.close()
        policy_s = stopwatch() - asked_at
        self._num_answers += 1
        name = f"{kind}-{session.name}-{done.turn}-{self._num_answers}"
        whole = written(done, asked, of, name)
        if stream:
            if not exchange.begun:
                exchange.begin(content_type)
            for data in writing.events(whole, asked):
                exchange.part(data)
            await exchange.end()
            return
        data = writing.dumped(whole)
        if exchange.begun:
            exchange.part(data)
            await exchange.end()
            return
        spent_s = stopwatch() - began
        timing = f"policy;dur={policy_s * 1000:.3f}, total;dur={spent_s * 1000:.3f}"
        await exchange.respond(200, data, timing)

    async def _awaited(
        self,
        exchange: Exchange,
        session: Session,
        work: Coroutine[Any, Any, Completion],
        content_type: str,
        digest: bytes,
    ) -> Completion:
        """Return the answer, unless the client leaves or the rollout ends before it is there."""
        assert self._group is not None
        asking = self._group.create_task(_contained(work))
        leaving = self._group.create_task(exchange.gone())
        session.tasks.add(asking)
        try:
            while not asking.done() and not leaving.done():
                await asyncio.wait(
                    {asking, leaving},
                    timeout=self._settings.keep_alive_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not asking.done() and not leaving.done():
                    if not exchange.begun:
                        exchange.begin(content_type)
                    exchange.part(_GO_ON[content_type])
        finally:
            session.tasks.discard(asking)
            was_there = not leaving.done()
            leaving.cancel()
            asking.cancel()
            await asyncio.wait({asking, leaving})
        if session.why:
            raise ended(session.why)
        if asking.cancelled():
            raise ClientGoneError
        done = asking.result()
        if isinstance(done, Exception):
            raise self._told(done, session)
        if not was_there:
            session.keep(digest, done)
            raise ClientGoneError
        return done

    def _told(self, error: Exception, session: Session) -> ApiError:
        answer = told(error, session.completions.max_context_tokens)
        if answer.code == "internal_error":
            _log.error("rollout %s could not answer", session.name, exc_info=error)
        return answer


async def _contained(work: Coroutine[Any, Any, Completion]) -> Completion | Exception:
    """Return what it raises: that is the client's to know, and no end of the gateway."""
    try:
        return await work
    except Exception as error:
        return error


def _prompt(body: Json, of: Completions) -> Any:
    """Return the ids of a text completion's prompt."""
    prompt: Any = body.get("prompt")
    batch = cast("list[Any]", prompt) if isinstance(prompt, list) else []
    if len(batch) == 1 and not isinstance(batch[0], int):
        prompt = batch[0]
    return of.encode(prompt) if isinstance(prompt, str) and prompt else reading.ids("prompt", prompt)
