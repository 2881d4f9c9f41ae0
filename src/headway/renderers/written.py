"""Written conversations as training samples: the tokens that a rollout which said the same would have.

Invariant: a conversation's ids are made turn by turn as a rollout's are (chat.py): the first prompt, each
answer's own ids with the id that closes it, the extension before the next one. So a model that is trained on
them sees, at its rollouts, nothing that it did not see here.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from headway.core.records import FLAGS, FLOATS, Turn, TurnSpan, VersionSpan
from headway.renderers.recorder import TurnRecorder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headway.core.records import Message, ToolSpec, TrainingSample
    from headway.renderers.chat import Renderer

NO_VERSION = -1  # of tokens that no policy sampled
TrainOn = Literal["all", "last"]


def written_sample(
    renderer: Renderer,
    messages: Sequence[Message],
    train_on: TrainOn = "all",
    not_trained: Collection[int] = (),
    tools: Sequence[ToolSpec] = (),
) -> TrainingSample:
    """Return the sample of a conversation, whose trained tokens are those of the assistant's messages.

    Calls of tools are a part of the answer that makes them, and are trained with it.

    Messages after the last answer are left out: nothing of them is trained, and nothing follows them.

    Args:
        renderer: of the model.
        messages: the conversation; at least one is the assistant's.
        train_on: which answers are trained: all, or the last one.
        not_trained: indices of messages that are not trained whatever `train_on` says.
        tools: that the assistant was told of.

    Raises:
        ModelError: the chat template refuses the conversation, or an answer holds a token that ends one.
    """
    recorder = TurnRecorder()
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    before, last_ids = 0, array("i")
    for number, index in enumerate(answers):
        if number:
            prompt = renderer.extension(messages[: before + 1], last_ids, messages[before + 1 : index], tools)
        else:
            prompt = renderer.first_prompt(messages[:index], tools)
        before, last_ids = index, renderer.answer_ids(renderer.spoken(messages[index]))
        spans = [VersionSpan(0, NO_VERSION, len(last_ids))]
        logprobs = array(FLOATS, bytes(4 * len(last_ids)))
        recorder.add(Turn(number - 1, prompt, last_ids, logprobs, spans, "stop", 1.0))
    (sample,) = recorder.samples()
    kept = {index for index in (answers[-1:] if train_on == "last" else answers) if index not in not_trained}
    if len(kept) < len(answers):
        trainable = array(FLAGS)
        for turn, index in zip(recorder.turns, answers, strict=True):
            trainable.extend([0] * len(turn.prompt_ids) + [int(index in kept)] * len(turn.token_ids))
        sample = with_mask(sample, trainable)
    return sample


def with_mask(sample: TrainingSample, trainable: array[int]) -> TrainingSample:
    """Return a written sample with another mask, [n]."""
    num = sum(trainable)
    spans = [VersionSpan(0, NO_VERSION, num)] if num else []
    return replace(sample, trainable=trainable, spans=spans, turns=[TurnSpan(0, num)] if num else [])


def cut(sample: TrainingSample, max_tokens: int) -> TrainingSample:
    """Return the first `max_tokens` tokens of a written sample."""
    shorter = replace(sample, token_ids=sample.token_ids[:max_tokens], logprobs=sample.logprobs[:max_tokens])
    return with_mask(shorter, sample.trainable[:max_tokens])
