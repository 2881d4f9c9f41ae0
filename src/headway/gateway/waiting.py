"""Waits for an answer on behalf of a client.

Three things end the wait: the answer, the client's leaving, the rollout's end. The last two abort what was
asked of the policy, and nothing of it is recorded. An answer whose client left in the same moment is
recorded, and kept for the client that asks the same again, as clients do after a broken connection. While it
waits, a client is told every `keep_alive_s` seconds to go on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headway.gateway.faults import ApiError, ended, told

if TYPE_CHECKING:
    from headway.core.protocols import Completion
    from headway.gateway.calls import Call
    from headway.gateway.http import Exchange
    from headway.gateway.sessions import Session

_log = logging.getLogger("headway.gateway")
_GO_ON = {"application/json": b" ", "text/event-stream": b": waiting\n\n"}


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def awaited(
    group: asyncio.TaskGroup, exchange: Exchange, session: Session, call: Call, keep_alive_s: float
) -> Completion:
    """Return the answer.

    Raises ApiError for what the client is to be told instead, ClientGoneError when it has left.
    """
    asking = group.create_task(_contained(call, session))
    leaving = group.create_task(exchange.gone())
    session.tasks.add(asking)
    try:
        while not asking.done() and not leaving.done():
            both = {asking, leaving}
            done, _ = await asyncio.wait(both, timeout=keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                if not exchange.begun:
                    exchange.begin(call.content_type)
                exchange.part(_GO_ON[call.content_type])
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
    answer = asking.result()
    if isinstance(answer, Exception):
        raise _told(answer, session)
    if not was_there:
        session.keep(call.digest, answer)
        raise ClientGoneError
    return answer


async def _contained(call: Call, session: Session) -> Completion | Exception:
    """Return what asking raises: that is the client's to know, and no end of the gateway."""
    try:
        async with session.places:  # a flood of one rollout's requests is no flood of the engine
            return await call.ask()
    except Exception as error:
        return error


def _told(error: Exception, session: Session) -> ApiError:
    answer = told(error, session.completions.max_context_tokens)
    if answer.code == "internal_error":
        _log.error("rollout %s could not answer", session.name, exc_info=error)
    return answer
