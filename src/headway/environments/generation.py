"""The engine's side of a conversation: answers grown over requests, and what interrupts them.

Each `grown` consumes the chunks of one engine request at a time and waits for its terminal chunk, which the
engine contract promises. Before each request it waits at the gate (parking.py) while the rollout is parked.
Requests that were taken away (`park`) or lost park the rollout, when the last of them has ended, and go on as
new requests from the tokens that they had. Cancelling `grown` aborts its request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headway.core.errors import EngineError
from headway.core.protocols import Chunk, Engine, GenerateRequest, Sampling
from headway.environments.parking import Gate

if TYPE_CHECKING:
    from array import array

    from headway.core.commands import StartRollout
    from headway.core.events import Event
    from headway.core.records import FinishReason
    from headway.environments.answer import Answer
    from headway.environments.watch import Watch
    from headway.renderers.chat import Renderer

_MAX_LOSSES = 3  # requests of one answer that the engine ends in a row without a token
ParkedBy = Literal["asked", "engine_lost"]


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """What bounds one answer, and how it is drawn beyond its temperature."""

    max_answer_tokens: int  # of one answer
    max_context_tokens: int  # of a whole conversation
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    streams: tuple[str, ...] = ()  # asked for in rollouts that are trained


async def _nothing() -> None:
    """Do nothing before an answer."""


class Generation:
    """The engine requests of one attempt at a rollout."""

    def __init__(
        self,
        command: StartRollout,
        engines: Mapping[str, Engine],
        renderer: Renderer,
        limits: GenerationLimits,
        stop_strings: tuple[str, ...],
        watch: Watch,
        emit: Callable[[Event], None],
        parked: Callable[[], Awaitable[None]],
    ) -> None:
        self._command = command
        self._engines = engines
        self._renderer = renderer
        self._limits = limits
        self._stop_strings = stop_strings
        self._watch = watch
        self._emit = emit
        self._parked = parked
        self._running: set[str] = set()  # requests whose tokens are awaited
        self.replica = command.replica
        self.gate = Gate()
        self.parked_by: ParkedBy = "asked"  # the next parking
        self.before_answer: Callable[[], Awaitable[None]] = _nothing  # sees to what it rests on
        self._engine()

    @property
    def session(self) -> str:
        """The engine session that the requests share."""
        return f"{self._command.rollout}.{self._command.attempt}"

    @property
    def running(self) -> bool:
        """Whether tokens of a request are awaited."""
        return bool(self._running)

    async def abort(self) -> bool:
        """Take the requests in flight away; return whether there were any."""
        running = list(self._running)
        if running:
            with contextlib.suppress(EngineError):  # a lost engine ends its requests by itself
                await self._engine().abort(running)
        return bool(running)

    async def end_session(self) -> None:
        """Give the engine's memory back."""
        with contextlib.suppress(EngineError):  # a lost engine has no sessions left to end
            await self._engine().end_session(self.session)

    async def grown(
        self, answer: Answer, context: array[int], name: str, number: int, num_said: Callable[[], int]
    ) -> tuple[FinishReason, str]:
        """Let the engine sample until the answer is over; return how it ended and the engine's words.

        Args:
            answer: gets the tokens.
            context: ids of the conversation before the answer, its own prompt included, [c].
            name: of the answer's requests within the attempt.
            number: that its draws are seeded by.
            num_said: tells how many tokens the rollout sampled so far, these included.

        Raises EngineError when the engine is gone for good, or only ever loses the request.
        """
        while (finish := self._is_over(answer)) is None:
            await self._may_ask()
            num_before = len(answer.ids)
            last = await self._collect(answer, self._request(answer, context, name, number), num_said)
            if last.finish in ("stop", "length", "rejected"):
                return last.finish, last.message
            if (finish := self._is_over(answer)) is not None:
                break
            if self.gate.state == "open":  # nobody asked for this end
                answer.num_losses = answer.num_losses + 1 if len(answer.ids) == num_before else 0
                if answer.num_losses >= _MAX_LOSSES:
                    return last.finish or "lost", last.message
                self.gate.ask()
                self.parked_by = "engine_lost"
                await self.abort()  # the rollout's other requests
            await self._parked()
        return finish, ""

    async def _may_ask(self) -> None:
        """Wait until it is not parked and what the next turn rests on is well."""
        while True:
            await self.gate.wait()
            await self.before_answer()
            if self.gate.state == "open":
                return

    def _is_over(self, answer: Answer) -> FinishReason | None:
        if not answer.ids:
            return None
        stop = (*self._stop_strings, *answer.stop)
        text = self._renderer.decode(answer.ids) if stop else ""
        return answer.is_over(text, self._renderer.stop_ids, stop)

    async def _collect(self, answer: Answer, request: GenerateRequest, num_said: Callable[[], int]) -> Chunk:
        """Run one request to its terminal chunk and return that."""
        engine = self._engine()
        self._running.add(request.request_id)
        last: Chunk | None = None
        try:
            async for chunk in engine.generate(request):
                answer.take(chunk)
                for verdict in self._watch.grew(answer.ids, num_said()):
                    self._emit(verdict)
                if chunk.finish is not None:
                    last = chunk
        finally:
            self._running.discard(request.request_id)
            if last is None:
                await engine.abort([request.request_id])
        if last is None:
            raise EngineError(
                "an engine must end each request with a terminal chunk", value=request.request_id
            )
        answer.part_ended(last)
        return last

    def _request(self, answer: Answer, context: array[int], name: str, number: int) -> GenerateRequest:
        command = self._command
        sampling = Sampling(
            max_tokens=answer.left,
            temperature=command.temperature,
            top_p=self._limits.top_p,
            top_k=self._limits.top_k,
            min_p=self._limits.min_p,
            stop_ids=self._renderer.stop_ids,
            stop_strings=(*self._stop_strings, *answer.stop),
            seed=(command.seed + number * 0x9E3779B1) % 2**31,
        )
        part = f".p{answer.num_parts}" if answer.num_parts else ""
        return GenerateRequest(
            f"{self.session}.{name}{part}",
            self.session,
            command.group,
            command.policy,
            context + answer.ids,
            sampling,
            priority=command.priority,
            num_answer_tokens=len(answer.ids),
            streams=self._limits.streams if command.purpose == "train" else (),
        )

    def _engine(self) -> Engine:
        engine = self._engines.get(self.replica)
        if engine is None:
            raise EngineError("no such replica", value=self.replica)
        return engine
