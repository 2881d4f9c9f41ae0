"""The turn recorder: what was put before each answer, what was sampled, and which of it is trained.

Turns form a tree; each root-to-leaf branch becomes one TrainingSample. Invariants: sampled ids enter the
samples byte for byte; ids that the environment or the template wrote have mask 0; a turn that branches
share is trainable in the first branch only.
"""

from __future__ import annotations

from array import array
from typing import Any

from headway.core.kept import Kept, grown
from headway.core.records import (
    FLAGS,
    FLOATS,
    TOKENS,
    Message,
    TrainingSample,
    Turn,
    TurnSpan,
    VersionSpan,
    merge_spans,
)


class TurnRecorder:
    """Builds the tree of one rollout's turns, and the transcript that people read."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.transcript: list[dict[str, Any]] = []

    def add(self, turn: Turn) -> int:
        """Append a turn whose parent is already there; return its index."""
        if not -1 <= turn.parent < len(self.turns):
            raise ValueError(f"turn {len(self.turns)} names parent {turn.parent}, which does not exist")
        if not len(turn.token_ids) == len(turn.logprobs) == sum(span.num_tokens for span in turn.spans):
            raise ValueError("a turn's ids, log-probs and version spans must have one length")
        num_tokens = self.num_context_tokens(turn.parent) + len(turn.prompt_ids) + len(turn.token_ids)
        for name, stream in turn.streams.items():
            if stream.axis == "token" and stream.shape[0] != num_tokens:
                raise ValueError(f"stream {name} must have a row for each of {num_tokens} tokens")
        grown(None, 0, turn.streams, len(turn.token_ids))
        if turn.parent >= 0:  # those of the branch so far come again with each turn
            parent = self.turns[turn.parent]
            parent.streams = {name: each for name, each in parent.streams.items() if each.axis != "token"}
        self.turns.append(turn)
        return len(self.turns) - 1

    def note(self, message: Message, **facts: Any) -> None:
        """Append a message to the transcript."""
        noted: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            noted["reasoning"] = message.reasoning
        if message.tool_calls:
            noted["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
            ]
        if message.tool_call_id:
            noted |= {"tool_call_id": message.tool_call_id, "name": message.name}
        self.transcript.append(noted | facts)

    def context(self, index: int) -> array[int]:
        """Return all ids from the root up to and including turn `index`; -1 is empty."""
        ids: array[int] = array(TOKENS)
        for at in self._path(index):
            ids.extend(self.turns[at].prompt_ids)
            ids.extend(self.turns[at].token_ids)
        return ids

    def num_context_tokens(self, index: int) -> int:
        """Return how many ids `context` would return."""
        turns = (self.turns[at] for at in self._path(index))
        return sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in turns)

    def samples(self) -> list[TrainingSample]:
        """Return one sample a branch, in the order of their leaves."""
        parents = {turn.parent for turn in self.turns}
        trained: set[int] = set()
        samples: list[TrainingSample] = []
        for leaf in range(len(self.turns)):
            if leaf in parents:
                continue
            path = self._path(leaf)
            samples.append(self._sample(path, trained))
            trained.update(path)
        return samples

    def spans(self) -> tuple[VersionSpan, ...]:
        """Return the version spans of all trainable tokens, in the order of `samples`."""
        return tuple(merge_spans([span for sample in self.samples() for span in sample.spans]))

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the environment and the template wrote."""
        return sum(len(turn.prompt_ids) for turn in self.turns)

    def _path(self, index: int) -> list[int]:
        path: list[int] = []
        while index >= 0:
            path.append(index)
            index = self.turns[index].parent
        return path[::-1]

    def _sample(self, path: list[int], trained: set[int]) -> TrainingSample:
        ids: array[int] = array(TOKENS)
        trainable: array[int] = array(FLAGS)
        logprobs: array[float] = array(FLOATS)
        spans: list[VersionSpan] = []
        turns: list[TurnSpan] = []
        kept: Kept | None = None
        for at in path:
            turn = self.turns[at]
            counts = at not in trained
            num_prompt, num_sampled = len(turn.prompt_ids), len(turn.token_ids)
            ids.extend(turn.prompt_ids)
            ids.extend(turn.token_ids)
            trainable.extend([0] * num_prompt + [int(counts)] * num_sampled)
            logprobs.extend([0.0] * num_prompt)
            logprobs.extend(turn.logprobs if counts else [0.0] * num_sampled)
            if counts:
                num_before = sum(span.num_tokens for span in turns)
                kept = grown(kept, num_before, turn.streams, num_sampled)
                spans += turn.spans
                turns.append(TurnSpan(at, num_sampled))
        temperature, last = self.turns[path[0]].temperature, self.turns[path[-1]].streams
        streams = {name: stream for name, stream in last.items() if stream.axis == "token"}
        streams |= kept.streams() if kept else {}
        return TrainingSample(ids, trainable, logprobs, merge_spans(spans), temperature, streams, turns)
