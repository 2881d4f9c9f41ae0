"""HTTP/1.1 on one connection: requests in, responses out. h11 knows the protocol, this moves the bytes.

Consumes what the client sends. Waits for a request, as long as it likes; for the rest of one that has begun,
until its time is over; and in `gone` for the client's leaving while somebody else works on the answer. The
end of the connection unblocks each.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11

from headway.gateway.faults import ApiError

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
_LINGER_S = 2.0  # for which a client that was refused may go on sending what it had begun
_LINGER_BYTES = 256 << 20  # likewise


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its body complete."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


class Exchange:
    """A connection that a client opened."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, max_body_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._max_body_bytes = max_body_bytes
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._chunked = False
        self._is_head = False  # the present request, whose response has no body
        self.begun = False  # the response to the present request

    async def receive(self, timeout_s: float) -> Request | None:
        """Return the next request, None when there is none any more.

        Args:
            timeout_s: in which one that has begun must be complete. None may begin for as long as it likes.

        Raises ApiError for what is no request, which is the connection's last.
        """
        due_s: float | None = None  # once the first bytes of it are there
        try:
            if self._protocol.our_state is h11.DONE:
                self._protocol.start_next_cycle()
            self.begun = self._chunked = False
            head: h11.Request | None = None
            parts: list[bytes] = []
            size = 0
            while True:
                event = self._protocol.next_event()
                if event is h11.NEED_DATA:
                    if due_s is None and (head is not None or self._protocol.trailing_data[0]):
                        due_s = asyncio.get_running_loop().time() + timeout_s
                    if self._protocol.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        self._write(self._protocol.send(go_on))
                    async with asyncio.timeout_at(due_s):
                        self._protocol.receive_data(await self._reader.read(_READ_BYTES))
                elif isinstance(event, h11.Request):
                    head = event
                    self._is_head = head.method == b"HEAD"
                    declared = dict(head.headers).get(b"content-length", b"0")
                    if int(declared) > self._max_body_bytes:  # nobody waits for what is not taken
                        raise self._too_large()
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > self._max_body_bytes:
                        raise self._too_large()
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage) and head is not None:
                    return _request(head, b"".join(parts))
                else:  # closed, or a state that no further request follows
                    return None
        except h11.RemoteProtocolError as error:
            raise ApiError(
                error.error_status_hint, f"this is no HTTP request: {error}", code="bad_request"
            ) from error
        except TimeoutError:
            rule = f"a request must be complete within {timeout_s:g} s (gateway.request_timeout_s)"
            raise ApiError(408, rule, code="request_timeout") from None
        except ConnectionError:
            return None

    def _too_large(self) -> ApiError:
        rule = (
            f"a request's body may have {self._max_body_bytes} bytes: gateway.max_request_mb, and out of a "
        )
        rule += "sandbox 512 for each token of the context, 1 MiB at least"
        return ApiError(413, rule, code="request_too_large")

    async def gone(self) -> None:
        """Return when the client has closed the connection; what it sends before is kept.

        A client that sends more than a whole request meanwhile is cut off: nothing bounds what it may send.
        """
        size = 0
        try:
            while data := await self._reader.read(_READ_BYTES):
                size += len(data)
                if size > self._max_body_bytes + _MAX_HEAD_BYTES:
                    self.abort()
                    return
                self._protocol.receive_data(data)
        except (ConnectionError, h11.RemoteProtocolError):
            return

    def begin(self, content_type: str) -> None:
        """Begin a response of status 200 whose length is not known yet."""
        headers = [("content-type", content_type), ("cache-control", "no-store"), *self._framing()]
        self._write(self._protocol.send(h11.Response(status_code=200, headers=headers)))
        self.begun = True

    def part(self, data: bytes) -> None:
        """Send a part of a response that has begun."""
        self._write(self._protocol.send(h11.Data(data=data)))

    async def end(self) -> None:
        """End a response that has begun."""
        self._write(self._protocol.send(h11.EndOfMessage()))
        await self._drain()

    async def respond(self, status: int, body: bytes, timing: str = "") -> None:
        """Send a whole JSON response."""
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        if timing:
            headers.append(("server-timing", timing))
        head = self._protocol.send(h11.Response(status_code=status, headers=headers)) or b""
        rest = b"" if self._is_head else self._protocol.send(h11.Data(data=body)) or b""
        self._write(head + rest + (self._protocol.send(h11.EndOfMessage()) or b""))
        await self._drain()

    async def linger(self) -> None:
        """Take in for a while what a client goes on sending that was refused, and end the connection.

        One that is closed with something unread is reset, and its client may never see why.
        """
        num = 0
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while num < _LINGER_BYTES and (data := await self._reader.read(_READ_BYTES)):
                    num += len(data)

    @property
    def may_respond(self) -> bool:
        """Whether a response can still begin."""
        return self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def goes_on(self) -> bool:
        """Whether the connection may bring another request."""
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    def _framing(self) -> list[tuple[str, str]]:
        self._chunked = self._protocol.their_http_version != b"1.0"
        return [("transfer-encoding", "chunked")] if self._chunked else [("connection", "close")]

    def _write(self, data: bytes | None) -> None:
        if data and not self._writer.is_closing():
            self._writer.write(data)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            return  # `gone` and `receive` tell

    def abort(self) -> None:
        """Cut the connection off, so that a client does not take what it has for a whole response."""
        self._writer.transport.abort()


def _request(head: h11.Request, body: bytes) -> Request:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    path = head.target.decode("latin-1").partition("?")[0]
    return Request(head.method.decode("latin-1"), path, headers, body)
