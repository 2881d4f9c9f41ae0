"""A rollout's conversation with the policy: messages in, sampled ids recorded, text out.

Every sampled id goes from the engine into the recorder untouched (renderers/chat.py says how the turns are
joined). Tokens come through `generation`. `park` stops the rollout at its next token, `resume` lets it go on;
the environment sees nothing of either: one answer is one Turn and one TurnEnded, however often it was parked.

A rollout of an earlier life is `rerun`: each say is answered from the record until that ends (record.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.core.errors import EngineError, EnvironmentFault
from headway.core.events import Event, RolloutParked, RolloutResumed, TurnEnded
from headway.core.protocols import Engine, Reply
from headway.core.records import FinishReason, Message, ToolSpec, Turn, merge_spans
from headway.environments.answer import Answer
from headway.environments.generation import Generation, GenerationLimits, ParkedBy
from headway.environments.partial import Partial
from headway.environments.record import Record, ReplayDivergedError, Said
from headway.renderers.recorder import TurnRecorder

if TYPE_CHECKING:
    from headway.core.commands import StartRollout
    from headway.environments.watch import Watch
    from headway.renderers.chat import Renderer


async def _no_payload() -> str:
    return ""


class Conversation:
    """The `Chat` of one attempt at a rollout."""

    def __init__(
        self,
        command: StartRollout,
        engines: Mapping[str, Engine],
        renderer: Renderer,
        limits: GenerationLimits,
        stop_strings: tuple[str, ...],
        system_prompt: str | None,
        watch: Watch,
        emit: Callable[[Event], None],
    ) -> None:
        self._command = command
        self._renderer = renderer
        self._limits = limits
        self._watch = watch
        self._emit = emit
        self._messages: list[Message] = []
        self._tools: tuple[ToolSpec, ...] = ()
        self._system = [] if system_prompt is None else [Message("system", system_prompt)]
        self._busy = False  # somebody waits for an answer
        self._num_cut_tokens = 0  # of an answer that did not come to its end
        self._closed = False
        self._known: list[Turn] = []  # of an earlier life
        self._carried: Answer | None = None  # the unfinished answer of an earlier life
        self._unfinished: Answer | None = None  # the answer in progress
        self.generation = Generation(
            command, engines, renderer, limits, stop_strings, watch, emit, self._parked
        )
        self.record = Record()
        self.recorder = TurnRecorder()
        self.num_answers = 0  # that the engine ended, failed ones included
        self.truncated = False
        self.payload: Callable[[], Awaitable[str]] = _no_payload  # writes what another life goes on from

    @property
    def num_turns(self) -> int:
        """Answers so far."""
        return len(self.recorder.turns)

    # --- what the environment calls

    async def say(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> Reply:
        """Append messages and let the policy answer; see `Chat`."""
        if self._closed:
            raise EnvironmentFault("a rollout that has ended cannot speak")
        if self._busy:
            raise EnvironmentFault("a conversation takes one say at a time")
        if not messages or any(message.role == "assistant" for message in messages):
            raise EnvironmentFault("say takes at least one message, and none of the assistant's")
        if not self._messages:
            self._tools = tuple(tools)
        elif tuple(tools) != self._tools:
            raise EnvironmentFault("each say of a rollout names the tools that its first one named")
        if not self._messages and messages[0].role != "system":
            messages = [*self._system, *messages]
        self._busy = True
        try:
            return await self._said(list(messages), max_tokens)
        finally:
            self._num_cut_tokens = 0 if self._unfinished is None else len(self._unfinished.ids)
            self._busy, self._unfinished = False, None
            await self._parked("asked")

    def report(self, value: float, reason: str = "") -> None:
        """Say how the rollout goes; see `Chat`."""
        if not (self._closed or self.record.telling):
            self._emit(self._watch.reported(value, reason))

    # --- what the host calls

    def watch_tokens(self, tokens: int) -> None:
        """Tell once more when the rollout has sampled so many tokens; 0 for never."""
        self._watch.tokens_changed(tokens)

    def may_park(self) -> bool:
        """Stop at the next token; return whether `park` is to follow, which tells RolloutParked."""
        return not self._closed and self.generation.gate.ask()

    async def park(self) -> None:
        """Give the engine's memory back, now or by whoever awaits the request in flight."""
        if not await self.generation.abort():
            await self._parked("asked")

    def resume(self, replica: str) -> None:
        """Go on where `park` stopped; told by RolloutResumed."""
        if not self._closed and self.generation.gate.may_open(replica):
            self._open(replica)

    def rerun(self, partial: Partial) -> None:
        """Tell the environment what it was told in an earlier life, then go on from there."""
        self.record, self._known, self._carried = partial.record, partial.turns, partial.unfinished
        self.num_answers = partial.num_answers

    def partial(self) -> Partial:
        """Return what another life could go on from now."""
        turns = self.recorder.turns if len(self.recorder.turns) >= len(self._known) else self._known
        unfinished = self._carried or self._unfinished
        if unfinished is not None and not unfinished.num_parts:
            unfinished = None  # nothing of it was ever asked for
        return Partial(self.record, turns, unfinished, self.num_answers)

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far, those of an answer that was cut off included."""
        return self.recorder.num_sampled_tokens + self._num_cut_tokens

    async def close(self) -> None:
        """End the engine's session, and the answer that is awaited, if any."""
        self._closed = True
        await self.generation.abort()
        await self.generation.end_session()

    # --- parking

    async def _parked(self, cause: ParkedBy) -> None:
        """Park now, if that was asked for and nobody else is at it."""
        if self._closed or not self.generation.gate.begin():
            return
        payload = ""
        try:
            await self.generation.end_session()
            payload = await self.payload()
        finally:
            early = self.generation.gate.parked()
            if not self._closed:
                known, command = self.partial(), self._command
                spans = [span for turn in known.turns for span in turn.spans]
                unfinished = [] if known.unfinished is None else known.unfinished.spans
                told = tuple(merge_spans([*spans, *unfinished]))
                num_unfinished = sum(span.num_tokens for span in unfinished)
                self._emit(
                    RolloutParked(command.rollout, command.attempt, told, payload, cause, num_unfinished)
                )
                if early:
                    self._open(early)

    def _open(self, replica: str) -> None:
        self.generation.replica = replica
        known = self.partial()
        num_tokens = sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in known.turns)
        if known.unfinished is not None:
            num_tokens += len(known.unfinished.prompt) + len(known.unfinished.ids)
        parked_s = self.generation.gate.open()
        command = self._command
        self._emit(RolloutResumed(command.rollout, command.attempt, replica, num_tokens, parked_s))

    # --- one answer

    async def _said(self, messages: list[Message], cap: int | None) -> Reply:
        known = self.record.said(messages, cap)
        if known is not None and known.refused:
            raise EnvironmentFault(known.refused)
        if known is not None:
            turn = self._known[self.num_turns]
            return self._complete(messages, turn)
        try:
            self._unfinished = answer = self._begun(messages, cap)
            finish = await self._grown(answer)
        except ReplayDivergedError:
            raise
        except EnvironmentFault as fault:
            if self.record.kept:
                self.record.says.append(Said(messages, cap, fault.rule))
            raise
        if self.record.kept:
            self.record.says.append(Said(messages, cap))
        self._unfinished = None
        sampled = answer.ids, answer.logprobs, answer.spans
        temperature, streams = self._command.temperature, answer.turn_streams
        turn = Turn(self.num_turns - 1, answer.prompt, *sampled, finish, temperature, streams)
        reply = self._complete(messages, turn)
        for verdict in self._watch.turn_ended(self._messages, self.recorder.num_sampled_tokens):
            self._emit(verdict)
        return reply

    def _begun(self, messages: list[Message], cap: int | None) -> Answer:
        """Return the answer to begin, or the one that an earlier life began."""
        if (carried := self._carried) is not None:
            self.record.must_equal("the last say", (carried.messages, carried.cap), (messages, cap))
            self._carried = None
            return carried
        parent = self.num_turns - 1
        if parent < 0:
            prompt = self._renderer.first_prompt(messages, self._tools)
        else:
            answered = self.recorder.turns[parent].token_ids
            prompt = self._renderer.extension(self._messages, answered, messages, self._tools)
        num_context = self._num_context_tokens + len(prompt)
        room = self._limits.max_context_tokens - num_context
        if room < 1:
            raise EnvironmentFault(
                f"a prompt of {num_context} tokens must leave room for an answer in a context of "
                f"{self._limits.max_context_tokens} tokens",
                remedy="Raise the generator's max_context_tokens, or make the environment's messages shorter",
            )
        wanted = self._limits.max_answer_tokens if cap is None else cap
        return Answer(messages, cap, prompt, min(wanted, self._limits.max_answer_tokens, room))

    async def _grown(self, answer: Answer) -> FinishReason:
        """Let the engine answer; return why it stopped.

        Raises EnvironmentFault for a rejected request, EngineError for one that is lost again and again.
        """
        context = self.recorder.context(self.num_turns - 1)
        context.extend(answer.prompt)
        num_said = self.recorder.num_sampled_tokens
        finish, words = await self.generation.grown(answer, context, self.num_turns, num_said)
        self._emit_turn(answer, finish)
        if finish == "rejected":
            raise EnvironmentFault(
                f"the engine rejected a prompt of {len(context) + len(answer.ids)} tokens "
                f"(context {self._limits.max_context_tokens} tokens): {words}"
            )
        if finish in ("lost", "aborted"):
            raise EngineError(f"the engine ended a request as {finish}: {words or 'no reason given'}")
        return finish

    def _complete(self, messages: list[Message], turn: Turn) -> Reply:
        """Record a turn and return it as the environment sees it."""
        for message in messages:
            self.recorder.note(message)
        self.recorder.add(turn)
        text = self._renderer.answer_text(turn.token_ids)
        answer, malformed = self._renderer.message(turn.token_ids, self._tools, turn=self.num_turns - 1)
        self._messages += [*messages, answer]
        num_tokens = len(turn.token_ids)
        self.recorder.note(answer, finish=turn.finish, num_tokens=num_tokens)
        self.truncated |= turn.finish == "length"
        num_room_tokens = self._limits.max_context_tokens - self._num_context_tokens
        return Reply(text, turn.finish, num_tokens, num_room_tokens, answer, malformed)

    @property
    def _num_context_tokens(self) -> int:
        """Tokens of the conversation so far, the unfinished answer and its prompt left out."""
        return self.recorder.num_prompt_tokens + self.recorder.num_sampled_tokens

    def _emit_turn(self, answer: Answer, finish: FinishReason) -> None:
        self._emit(
            TurnEnded(
                rollout=self._command.rollout,
                attempt=self._command.attempt,
                turn=self.num_answers,
                replica=answer.replica or self.generation.replica,
                spans=tuple(answer.spans),
                num_prompt_tokens=self._num_context_tokens + len(answer.prompt),
                num_resident_tokens=answer.num_resident_tokens,
                waiting_s=answer.waiting_s,
                prefill_s=answer.prefill_s,
                decode_s=answer.decode_s,
                finish=finish,
            )
        )
        self.num_answers += 1
