"""What a request's chunks carry beside tokens and log-probs.

Streams of sampled tokens go out with the chunk that their tokens go out with, so that a replica's death costs
none of what was handed on; those of the prompt go out with the terminal chunk.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy

from headway.core.kept import Kept
from headway.core.records import FLOATS, KEPT_IDS, MODEL_LOGPROBS, PROMPT_LOGPROBS, ROUTED_EXPERTS, Stream

if TYPE_CHECKING:
    from torch import Tensor

SAMPLED = (KEPT_IDS, MODEL_LOGPROBS)
OFFERED = frozenset((*SAMPLED, PROMPT_LOGPROBS))  # for any model


def _floats() -> array[float]:
    return array(FLOATS)


@dataclass(slots=True)
class SampledStreams:
    """Those of the tokens that were not sent yet."""

    wants_kept: bool
    wants_model: bool
    _kept: Kept = field(default_factory=Kept)
    _model: array[float] = field(default_factory=_floats)

    @staticmethod
    def of(wanted: Sequence[str]) -> SampledStreams:
        """Begin with no tokens."""
        return SampledStreams(KEPT_IDS in wanted, MODEL_LOGPROBS in wanted)

    def take(self, kept: array[int] | None, model_logprob: float | None) -> None:
        """Note what one token was drawn from, None for the whole vocabulary."""
        if self.wants_kept:
            self._kept.append(kept or ())
        if self.wants_model and model_logprob is not None:
            self._model.append(model_logprob)

    def flush(self) -> dict[str, Stream]:
        """Return the streams of all tokens since the last call."""
        streams = self._kept.streams() if self.wants_kept else {}
        if self.wants_model:
            data = self._model.tobytes()
            streams[MODEL_LOGPROBS] = Stream("sampled", "float32", (len(self._model),), data)
        self._kept, self._model = Kept(), array(FLOATS)
        return streams


class PromptLogprobs:
    """Log-probs of a prompt's own tokens, as its prefill computes them, in order.

    Attributes:
        num_known: positions whose output is known, those of all but the last token at the end.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.num_known = 0
        self._prompt = numpy.array(prompt, dtype=numpy.int64)
        self._values = numpy.full(len(prompt), math.nan, dtype=numpy.float32)

    @property
    def complete(self) -> bool:
        """Whether all are known."""
        return self.num_known >= len(self._prompt) - 1

    def lacking(self, start: int, num_tokens: int) -> slice:
        """Return which of the positions from `start` on predict a token of the prompt that is not known."""
        begin = max(self.num_known, start) - start
        end = min(start + num_tokens, len(self._prompt) - 1) - start
        return slice(begin, max(begin, end))

    def targets(self, start: int, part: slice) -> numpy.ndarray:
        """Return the tokens that these positions predict, int64."""
        return self._prompt[start + part.start + 1 : start + part.stop + 1]

    def take(self, start: int, part: slice, logprobs: numpy.ndarray) -> None:
        """Keep what positions from `num_known` on gave."""
        self._values[start + part.start + 1 : start + part.stop + 1] = logprobs
        self.num_known = start + part.stop

    def forget(self) -> None:
        """Compute all anew: the weights are others."""
        self.num_known = 0

    def streams(self) -> dict[str, Stream]:
        """Return the stream, NaN where nothing is known."""
        shape = (len(self._values),)
        return {PROMPT_LOGPROBS: Stream("prompt", "float32", shape, self._values.tobytes())}


def routed_experts(known: Tensor, num_tokens: int) -> dict[str, Stream]:
    """Return the experts of a request's tokens, -1 for those whose KV is not there.

    `known` is of its first tokens, int16 [tokens, layers with experts, experts per token].
    """
    rows = known.new_full((num_tokens, *known.shape[1:]), -1)
    rows[: len(known)] = known
    return {ROUTED_EXPERTS: Stream("token", "int16", tuple(rows.shape), rows.cpu().numpy().tobytes())}
