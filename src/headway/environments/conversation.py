"""A rollout's conversation with the policy: messages in, sampled ids recorded, text out.

Consumes the chunks of one engine request at a time and waits for its terminal chunk, which the engine
contract promises. Cancelling `say` aborts the request. Every sampled id goes from the chunk into the
recorder untouched (renderers/chat.py says how the turns are joined).
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.errors import EngineError, EnvironmentFault
from headway.core.events import Event, TurnEnded
from headway.core.protocols import Chunk, Engine, GenerateRequest, Reply, Sampling
from headway.core.records import FLOATS, TOKENS, FinishReason, Message, Turn, VersionSpan, merge_spans
from headway.renderers.recorder import TurnRecorder

if TYPE_CHECKING:
    from headway.core.commands import StartRollout
    from headway.renderers.chat import Renderer


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """What bounds one answer, and how it is drawn beyond its temperature."""

    max_answer_tokens: int  # of one answer
    max_context_tokens: int  # of a whole conversation
    top_p: float = 1.0
    top_k: int = 0


class Conversation:
    """The `Chat` of one attempt at a rollout."""

    def __init__(
        self,
        command: StartRollout,
        engine: Engine,
        renderer: Renderer,
        limits: GenerationLimits,
        stop_strings: tuple[str, ...],
        system_prompt: str | None,
        emit: Callable[[Event], None],
    ) -> None:
        self._command = command
        self._engine = engine
        self._renderer = renderer
        self._limits = limits
        self._stop_strings = stop_strings
        self._emit = emit
        self._messages: list[Message] = []
        self._system = [] if system_prompt is None else [Message("system", system_prompt)]
        self._running: str | None = None  # the request that an answer is awaited from
        self._closed = False
        self.recorder = TurnRecorder()
        self.num_answers = 0  # that the engine ended, failed ones included
        self.truncated = False

    @property
    def session(self) -> str:
        """The engine session that the conversation's requests share."""
        return f"{self._command.rollout}.{self._command.attempt}"

    @property
    def num_turns(self) -> int:
        """Answers so far."""
        return len(self.recorder.turns)

    async def say(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """Append messages and let the policy answer; see `Chat`."""
        if self._closed:
            raise EnvironmentFault("a rollout that has ended cannot speak")
        if self._running is not None:
            raise EnvironmentFault("a conversation takes one say at a time")
        if not messages or any(message.role == "assistant" for message in messages):
            raise EnvironmentFault("say takes at least one message, and none of the assistant's")
        if not self._messages and messages[0].role != "system":
            messages = [*self._system, *messages]
        self._running = f"{self.session}.{self.num_turns}"
        try:
            return await self._answer(list(messages), max_tokens)
        finally:
            self._running = None

    async def close(self) -> None:
        """End the engine's session, and the answer that is awaited, if any."""
        self._closed = True
        with contextlib.suppress(EngineError):  # a lost engine has no sessions left to end
            if self._running is not None:
                await self._engine.abort([self._running])
            await self._engine.end_session(self.session)

    async def _answer(self, messages: list[Message], max_tokens: int | None) -> Reply:
        parent = self.num_turns - 1
        context = self.recorder.context(parent)
        if parent < 0:
            prompt = self._renderer.first_prompt(messages)
        else:
            prompt = self._renderer.extension(self._messages, self.recorder.turns[parent].token_ids, messages)
        context.extend(prompt)
        room = self._limits.max_context_tokens - len(context)
        if room < 1:
            raise EnvironmentFault(
                f"a prompt of {len(context)} tokens must leave room for an answer in a context of "
                f"{self._limits.max_context_tokens} tokens",
                remedy="Raise the generator's max_context_tokens, or make the environment's messages shorter",
            )
        for message in messages:
            self.recorder.note(message)
        cap = self._limits.max_answer_tokens if max_tokens is None else max_tokens
        request = self._request(context, min(cap, self._limits.max_answer_tokens, room))
        ids, logprobs, spans, last = await self._collect(request)
        self._emit_turn(len(context), spans, last)
        finish = self._checked_finish(last, len(context))
        turn = Turn(parent, prompt, ids, logprobs, spans, finish, self._command.temperature)
        self.recorder.add(turn)
        text = self._renderer.answer_text(ids)
        answer = Message("assistant", text)
        self._messages += [*messages, answer]
        self.recorder.note(answer, finish=finish, num_tokens=len(ids))
        self.truncated |= finish == "length"
        return Reply(text, finish, len(ids), room - len(ids))

    def _request(self, context: array[int], max_tokens: int) -> GenerateRequest:
        command, turn = self._command, self.num_turns
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=command.temperature,
            top_p=self._limits.top_p,
            top_k=self._limits.top_k,
            stop_ids=self._renderer.stop_ids,
            stop_strings=self._stop_strings,
            seed=(command.seed + turn * 0x9E3779B1) % 2**31,
        )
        return GenerateRequest(
            f"{self.session}.{turn}", self.session, command.group, command.policy, context, sampling
        )

    async def _collect(
        self, request: GenerateRequest
    ) -> tuple[array[int], array[float], list[VersionSpan], Chunk]:
        ids: array[int] = array(TOKENS)
        logprobs: array[float] = array(FLOATS)
        spans: list[VersionSpan] = []
        last: Chunk | None = None
        try:
            async for chunk in self._engine.generate(request):
                ids.extend(chunk.token_ids)
                logprobs.extend(chunk.logprobs)
                spans += chunk.spans
                if chunk.finish is not None:
                    last = chunk
        finally:
            if last is None:
                await self._engine.abort([request.request_id])
        if last is None:
            raise EngineError(
                "an engine must end each request with a terminal chunk", value=request.request_id
            )
        if not len(ids) == len(logprobs) == sum(span.num_tokens for span in spans):
            raise EngineError(
                "an engine must give one log-prob and one version a token",
                value=(len(ids), len(logprobs), sum(span.num_tokens for span in spans)),
            )
        return ids, logprobs, merge_spans(spans), last

    def _emit_turn(self, num_prompt_tokens: int, spans: list[VersionSpan], last: Chunk) -> None:
        assert last.finish is not None
        self._emit(
            TurnEnded(
                rollout=self._command.rollout,
                attempt=self._command.attempt,
                turn=self.num_answers,
                replica=last.replica or self._command.replica,
                spans=tuple(spans),
                num_prompt_tokens=num_prompt_tokens,
                num_resident_tokens=last.num_resident_tokens,
                waiting_s=last.waiting_s,
                prefill_s=last.prefill_s,
                decode_s=last.decode_s,
                finish=last.finish,
            )
        )
        self.num_answers += 1

    def _checked_finish(self, last: Chunk, num_prompt_tokens: int) -> FinishReason:
        if last.finish == "rejected":
            raise EnvironmentFault(
                f"the engine rejected a prompt of {num_prompt_tokens} tokens "
                f"(context {self._limits.max_context_tokens} tokens): {last.message}"
            )
        if last.finish in ("lost", "aborted"):
            raise EngineError(
                f"the engine ended a request as {last.finish}: {last.message or 'no reason given'}"
            )
        assert last.finish is not None
        return last.finish
