"""The answers of one rollout: asked of the engine, recorded as a tree of turns, told by TurnEnded.

Several may be awaited at a time, each on its own branch. An answer waits for its engine, and at the gate
while the rollout is parked (generation.py); cancelling it aborts its request, and nothing of it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import ContextFullError, EngineError, EnvironmentFault
from headway.core.events import Event, TurnEnded
from headway.core.records import FinishReason, Message, ToolSpec, Turn
from headway.environments.answer import Answer
from headway.renderers.recorder import TurnRecorder

if TYPE_CHECKING:
    from array import array

    from headway.core.commands import StartRollout
    from headway.environments.branches import Branches
    from headway.environments.generation import Generation, GenerationLimits
    from headway.environments.watch import Watch
    from headway.renderers.chat import Renderer


class Turns:
    """What was answered so far, and what is being answered."""

    def __init__(
        self,
        command: StartRollout,
        renderer: Renderer,
        limits: GenerationLimits,
        generation: Generation,
        watch: Watch,
        emit: Callable[[Event], None],
        branches: Branches,
    ) -> None:
        self._command = command
        self._renderer = renderer
        self._limits = limits
        self._generation = generation
        self._watch = watch
        self._emit = emit
        self._num_waiting = 0
        self._waiting_since = 0.0
        self._waited_s = 0.0
        self.recorder = TurnRecorder()
        self.branches = branches
        self.open: list[Answer] = []  # being answered
        self.num_answers = 0  # that the engine ended, failed ones included
        self.num_cut_tokens = 0  # of answers that did not come to their end
        self.truncated = False

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far, those of unfinished and cut answers included."""
        unfinished = sum(len(answer.ids) for answer in self.open)
        return self.recorder.num_sampled_tokens + self.num_cut_tokens + unfinished

    @property
    def answering_s(self) -> float:
        """Seconds in which at least one answer was awaited."""
        return self._waited_s + (stopwatch() - self._waiting_since if self._num_waiting else 0.0)

    def _waits(self) -> None:
        if not self._num_waiting:
            self._waiting_since = stopwatch()
        self._num_waiting += 1

    def _waits_no_more(self) -> None:
        self._num_waiting -= 1
        if not self._num_waiting:
            self._waited_s += stopwatch() - self._waiting_since

    def prompt(self, parent: int, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> array[int]:
        """Return the ids that messages put behind an answer, or at the beginning."""
        most = self._limits.max_context_tokens
        if parent < 0:
            return self._renderer.first_prompt(messages, tools, max_tokens=most)
        answered, history = self.recorder.turns[parent].token_ids, self.branches.history(parent)
        return self._renderer.extension(history, answered, messages, tools, max_tokens=most)

    def begin(
        self,
        messages: Sequence[Message],
        cap: int | None,
        prompt: array[int],
        parent: int,
        stop: tuple[str, ...] = (),
    ) -> Answer:
        """Return an answer to be grown.

        Raises ContextFullError when nothing can be answered.
        """
        num_context = self.recorder.num_context_tokens(parent) + len(prompt)
        room = self._limits.max_context_tokens - num_context
        if room < 1:
            raise ContextFullError(
                f"a prompt of {num_context} tokens must leave room for an answer in a context of "
                f"{self._limits.max_context_tokens} tokens",
                remedy="Raise the generator's max_context_tokens, or make the environment's messages shorter",
            )
        wanted = self._limits.max_answer_tokens if cap is None else cap
        budget = min(wanted, self._limits.max_answer_tokens, room)
        return Answer(list(messages), cap, prompt, budget, parent, stop)

    async def grow(self, answer: Answer, name: str, number: int) -> FinishReason:
        """Let the engine answer; return why it stopped.

        Args:
            answer: gets the tokens.
            name: of its requests within the rollout's attempt.
            number: that its draws are seeded by.

        Raises EnvironmentFault for a rejected request, EngineError for one that is lost again and again.
        """
        context = self.recorder.context(answer.parent)
        context.extend(answer.prompt)
        self.open.append(answer)
        self._waits()
        try:
            asked = self._generation.grown(answer, context, name, number, lambda: self.num_tokens)
            finish, words = await asked
        except BaseException:
            self.num_cut_tokens += len(answer.ids)
            raise
        finally:
            self._waits_no_more()
            self.open = [each for each in self.open if each is not answer]
        self._tell(answer, len(context), finish)
        if finish == "rejected":
            raise EnvironmentFault(
                f"the engine rejected a prompt of {len(context) + len(answer.ids)} tokens "
                f"(context {self._limits.max_context_tokens} tokens): {words}"
            )
        if finish in ("lost", "aborted"):
            raise EngineError(f"the engine ended a request as {finish}: {words or 'no reason given'}")
        return finish

    def record(
        self,
        turn: Turn,
        messages: Sequence[Message],
        answer: Message,
        tools: tuple[ToolSpec, ...] = (),
        *,
        as_ids: bool = False,
    ) -> int:
        """Record a turn with what people read of it; return its index."""
        for message in messages:
            self.recorder.note(message)
        index = self.recorder.add(turn)
        self.branches.add(index, turn.parent, None if as_ids else messages, answer, tools)
        self.recorder.note(answer, finish=turn.finish, num_tokens=len(turn.token_ids))
        self.truncated |= turn.finish == "length"
        return index

    def ended(self, answer: Answer, finish: FinishReason) -> Turn:
        """Return the turn that an answer became."""
        sampled = answer.ids, answer.logprobs, answer.spans
        return Turn(
            answer.parent, answer.prompt, *sampled, finish, self._command.temperature, answer.turn_streams
        )

    def judge(self, turn: int) -> None:
        """Ask the value hook about the branch that ends with a turn."""
        for verdict in self._watch.turn_ended(self.branches.history(turn), self.recorder.num_sampled_tokens):
            self._emit(verdict)

    def _tell(self, answer: Answer, num_context: int, finish: FinishReason) -> None:
        self._emit(
            TurnEnded(
                rollout=self._command.rollout,
                attempt=self._command.attempt,
                turn=self.num_answers,
                replica=answer.replica or self._generation.replica,
                spans=tuple(answer.spans),
                num_prompt_tokens=num_context,
                num_resident_tokens=answer.num_resident_tokens,
                waiting_s=answer.waiting_s,
                prefill_s=answer.prefill_s,
                decode_s=answer.decode_s,
                finish=finish,
            )
        )
        self.num_answers += 1
