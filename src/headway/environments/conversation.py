"""A rollout's conversation with the policy: messages in, sampled ids recorded, text out.

Every sampled id goes from the engine into the recorder untouched (renderers/chat.py says how the turns are
joined). Tokens come through `turns` and `generation`. `park` stops the rollout at its next token, `resume`
lets it go on; the environment sees nothing of either: one answer is one Turn and one TurnEnded, however often
it was parked.

`say` goes on from its own last answer; `complete` from whichever answer its history repeats (branches.py),
several at a time. A rollout of an earlier life is `rerun`: each say is answered from the record until that
ends (record.py). Histories are not recorded, so an environment that takes them restarts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from headway.core.errors import ContextFullError, EnvironmentFault
from headway.core.events import Event, RolloutParked, RolloutResumed
from headway.core.protocols import Completion, Endpoint, EndpointServer, Engine, Reply
from headway.core.records import Message, ToolSpec, Turn, merge_spans
from headway.environments.branches import Branches
from headway.environments.generation import Generation, GenerationLimits
from headway.environments.histories import Histories
from headway.environments.partial import Partial
from headway.environments.record import Record, ReplayDivergedError, Said
from headway.environments.turns import Turns

if TYPE_CHECKING:
    from array import array

    from headway.core.commands import StartRollout
    from headway.environments.answer import Answer
    from headway.environments.watch import Watch
    from headway.renderers.chat import Renderer
    from headway.renderers.recorder import TurnRecorder


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
        server: EndpointServer | None = None,
        *,
        strict_reasoning: bool = False,
    ) -> None:
        self._command = command
        self._renderer = renderer
        self._limits = limits
        self._watch = watch
        self._emit = emit
        self._server = server
        self._at = -1  # the last say's turn
        self._tools: tuple[ToolSpec, ...] = ()
        self._system = [] if system_prompt is None else [Message("system", system_prompt)]
        self._busy = False  # a say waits for an answer
        self._closed = False
        self._known: list[Turn] = []  # of an earlier life
        self._carried: Answer | None = None  # the unfinished answer of an earlier life
        self.generation = Generation(
            command, engines, renderer, limits, stop_strings, watch, emit, self._parked
        )
        branches = Branches(strict=strict_reasoning)
        self.turns = Turns(command, renderer, limits, self.generation, watch, emit, branches)
        self._histories = Histories(self.turns, renderer, self._parked, self._must_be_open)
        self.record = Record()
        self.payload: Callable[[], Awaitable[str]] = _no_payload  # writes what another life goes on from
        self.calling: Callable[[], AbstractContextManager[None]] = nullcontext  # around a tool's call

    @property
    def recorder(self) -> TurnRecorder:
        """What was sampled."""
        return self.turns.recorder

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
        self._must_be_open()
        if self._busy:
            raise EnvironmentFault("a conversation takes one say at a time")
        if not messages or any(message.role == "assistant" for message in messages):
            raise EnvironmentFault("say takes at least one message, and none of the assistant's")
        if self._at < 0:
            self._tools = tuple(tools)
        elif tuple(tools) != self._tools:
            raise EnvironmentFault("each say of a rollout names the tools that its first one named")
        messages = self._begun(messages) if self._at < 0 else list(messages)
        self._busy = True
        try:
            return await self._said(messages, max_tokens)
        finally:
            self._busy = False
            await self._parked()

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Let the policy answer a whole history; see `Completions`."""
        self._must_take_histories()
        return await self._histories.complete(self._begun(messages), tuple(tools), max_tokens, tuple(stop))

    async def complete_ids(
        self, prompt_ids: array[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Completion:
        """Let the policy go on from token ids; see `Completions`."""
        self._must_take_histories()
        return await self._histories.complete_ids(prompt_ids, max_tokens, tuple(stop))

    @asynccontextmanager
    async def endpoint(self) -> AsyncGenerator[Endpoint]:
        """Let programs speak to this rollout; see `Chat`."""
        self._must_take_histories()
        if self._server is None:
            raise EnvironmentFault("this host of rollouts does not serve them to programs")
        served = await self._server.open(self, f"{self._command.rollout}.{self._command.attempt}")
        why = "its rollout was cancelled or failed"
        try:
            yield served
            why = "its rollout has ended"
        finally:
            await self._server.close_session(served, why)

    @property
    def answering_s(self) -> float:
        """Seconds in which an answer was awaited; see `Chat`."""
        return self.turns.answering_s

    @property
    def sampled(self) -> Sequence[array[int]]:
        """Token ids of each answer; see `Chat`."""
        return [turn.token_ids for turn in self.recorder.turns]

    @property
    def max_context_tokens(self) -> int:
        """Tokens of a history and its answer, at most."""
        return self._limits.max_context_tokens

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text; ContextFullError for one that has no room in the context for certain."""
        return self._renderer.encode(self._renderer.fitting(text, self._limits.max_context_tokens))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._renderer.decode(ids, skip_special=False)

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
        """Give the engine's memory back, now or by whoever awaits a request in flight."""
        if not await self.generation.abort():
            await self._parked()

    def resume(self, replica: str) -> None:
        """Go on where `park` stopped; told by RolloutResumed."""
        if not self._closed and self.generation.gate.may_open(replica):
            self._open(replica)

    def rerun(self, partial: Partial) -> None:
        """Tell the environment what it was told in an earlier life, then go on from there."""
        self.record, self._known, self._carried = partial.record, partial.turns, partial.unfinished
        self.turns.num_answers = partial.num_answers

    def partial(self) -> Partial:
        """Return what another life could go on from now."""
        turns = self.recorder.turns if len(self.recorder.turns) >= len(self._known) else self._known
        unfinished = self._carried or next(iter(self.turns.open), None)
        if unfinished is not None and not unfinished.num_parts:
            unfinished = None  # nothing of it was ever asked for
        return Partial(self.record, turns, unfinished, self.turns.num_answers)

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far, those of an answer that was cut off included."""
        return self.turns.num_tokens

    async def close(self) -> None:
        """End the engine's session, and the answers that are awaited, if any."""
        self._closed = True
        await self.generation.abort()
        await self.generation.end_session()

    # --- parking

    async def _parked(self) -> None:
        """Park now, if that was asked for, no request runs any more, and nobody else is at it."""
        if self._closed or self.generation.running or not self.generation.gate.begin():
            return
        cause, self.generation.parked_by = self.generation.parked_by, "asked"
        payload = ""
        try:
            await self.generation.end_session()
            payload = await self.payload()
        finally:
            early = self.generation.gate.parked()
            if not self._closed:
                command = self._command
                spans = [span for turn in self.partial().turns for span in turn.spans]
                unfinished = [span for answer in self._begun_answers() for span in answer.spans]
                told = tuple(merge_spans([*spans, *unfinished]))
                num_unfinished = sum(span.num_tokens for span in unfinished)
                self._emit(
                    RolloutParked(command.rollout, command.attempt, told, payload, cause, num_unfinished)
                )
                if early:
                    self._open(early)

    def _open(self, replica: str) -> None:
        self.generation.replica = replica
        num_tokens = sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in self.partial().turns)
        num_tokens += sum(len(answer.prompt) + len(answer.ids) for answer in self._begun_answers())
        parked_s = self.generation.gate.open()
        command = self._command
        self._emit(RolloutResumed(command.rollout, command.attempt, replica, num_tokens, parked_s))

    def _begun_answers(self) -> list[Answer]:
        """Return the unfinished answers of which something was asked for."""
        carried = [] if self._carried is None else [self._carried]
        return [answer for answer in (*carried, *self.turns.open) if answer.num_parts]

    # --- one answer

    def _must_be_open(self) -> None:
        if self._closed:
            raise EnvironmentFault("a rollout that has ended cannot speak")

    def _must_take_histories(self) -> None:
        self._must_be_open()
        if self.record.kept:
            raise EnvironmentFault(
                "an environment whose programs send whole histories must restart after a crash",
                remedy='Declare resume = "restart" in its class',
            )

    def _begun(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages that begin a conversation, with the environment's system prompt."""
        return [*([] if messages and messages[0].role == "system" else self._system), *messages]

    async def _said(self, messages: list[Message], cap: int | None) -> Reply:
        known = self.record.said(messages, cap)
        if known is not None and known.refused:
            raise (ContextFullError if known.full else EnvironmentFault)(known.refused)
        if known is not None:
            return self._reply(messages, self._known[self.num_turns])
        turns = self.turns
        turns.num_cut_tokens = 0
        try:
            answer = self._to_grow(messages, cap)
            finish = await turns.grow(answer, str(self.num_turns), self.num_turns)
        except ReplayDivergedError:
            raise
        except EnvironmentFault as fault:
            if self.record.kept:
                full = isinstance(fault, ContextFullError)
                self.record.says.append(Said(messages, cap, fault.rule, full))
            raise
        if self.record.kept:
            self.record.says.append(Said(messages, cap))
        reply = self._reply(messages, turns.ended(answer, finish))
        turns.judge(self._at)
        return reply

    def _to_grow(self, messages: list[Message], cap: int | None) -> Answer:
        """Return the answer to begin, or the one that an earlier life began."""
        if (carried := self._carried) is not None:
            self.record.must_equal("the last say", (carried.messages, carried.cap), (messages, cap))
            self._carried = None
            return carried
        prompt = self.turns.prompt(self._at, messages, self._tools)
        return self.turns.begin(messages, cap, prompt, self._at)

    def _reply(self, messages: list[Message], turn: Turn) -> Reply:
        """Record a say's turn and return it as the environment sees it."""
        text = self._renderer.answer_text(turn.token_ids)
        answer, malformed = self._renderer.message(turn.token_ids, self._tools, turn=self.num_turns)
        self._at = self.turns.record(turn, messages, answer, self._tools)
        num_room_tokens = self._limits.max_context_tokens - self.recorder.num_context_tokens(self._at)
        return Reply(text, turn.finish, len(turn.token_ids), num_room_tokens, answer, malformed)
