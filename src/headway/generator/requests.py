"""What an engine refuses before a request reaches its loop."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.protocols import GenerateRequest

MIN_TEMPERATURE = 1e-6
"""Below it logits over the temperature may leave float32."""


def problem(
    request: GenerateRequest, *, context: int, vocab: int, decodes_text: bool, streams: Collection[str]
) -> str:
    """Return why a request cannot run, or nothing.

    Args:
        request: the request.
        context: tokens of prompt and answer together, at most.
        vocab: token ids are below this.
        decodes_text: whether the engine can look for stop strings.
        streams: that the engine has.
    """
    sampling = request.sampling
    for name in ("max_tokens", "top_k", "seed"):
        if type(value := getattr(sampling, name)) is not int:
            return f"{name} must be a whole number, not {value!r}"
    for name in ("temperature", "top_p", "min_p"):
        if type(value := getattr(sampling, name)) not in (int, float):
            return f"{name} must be a number, not {value!r}"
    if not len(request.prompt_ids):
        return "the prompt is empty"
    if len(request.prompt_ids) >= context:
        return (
            f"the prompt of {len(request.prompt_ids)} tokens leaves no room for an answer in "
            f"generator.max_context_tokens = {context}"
        )
    if sampling.max_tokens < 1:
        return f"max_tokens must be at least 1, not {sampling.max_tokens}"
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocab:
        return f"the prompt has a token id outside the vocabulary of {vocab}"
    if not 0 <= request.num_answer_tokens < len(request.prompt_ids):
        return f"the answer cannot begin with {request.num_answer_tokens} tokens of its prompt"
    if not (sampling.temperature >= 0 and 0 < sampling.top_p <= 1 and sampling.top_k >= 0):
        return f"temperature, top_p or top_k is out of range: {sampling}"
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        return f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, not {sampling.temperature}"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p must be from 0 to 1, not {sampling.min_p}"
    if sampling.stop_strings and not decodes_text:
        return "stop strings need an engine that was given decode_text"
    if unknown := sorted(set(request.streams) - set(streams)):
        there = ", ".join(sorted(streams)) or "none"
        return f"of this model there are the streams {there}, not {', '.join(unknown)}"
    return ""
