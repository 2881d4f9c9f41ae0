"""What an engine refuses before a request reaches its loop.

Requests come from other processes and from people's own code, so that types, too, are looked at: nothing that
passes may raise in the loop's thread, which all requests share.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.core.protocols import GenerateRequest, Sampling

MIN_TEMPERATURE = 1e-6
"""But for 0. Below it logits over the temperature, which training computes, may leave float32."""

MAX_TEMPERATURE = 1e6
"""Beyond it every token is as likely as any other, in f32."""

_MAX_SEED_BITS = 256
_INTEGERS = "bBhHiIlLqQ"  # typecodes of arrays


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
    if wrong := _wrong_type(request) or _wrong_sampling(request.sampling):
        return wrong
    if not len(request.prompt_ids):
        return "the prompt is empty"
    if len(request.prompt_ids) >= context:
        return (
            f"the prompt of {len(request.prompt_ids)} tokens leaves no room for an answer in "
            f"generator.max_context_tokens = {context}"
        )
    if not _are_integers(request.prompt_ids):
        return "prompt_ids must be integers"
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocab:
        return f"the prompt has a token id outside the vocabulary of {vocab}"
    if not 0 <= request.num_answer_tokens < len(request.prompt_ids):
        return f"the answer cannot begin with {_short(request.num_answer_tokens)} tokens of its prompt"
    if request.sampling.stop_strings and not decodes_text:
        return "stop strings need an engine that was given decode_text"
    if unknown := sorted(set(request.streams) - set(streams)):
        there = ", ".join(sorted(streams)) or "none"
        return f"of this model there are the streams {there}, not {', '.join(unknown)}"
    return ""


def _wrong_type(request: GenerateRequest) -> str:
    """Return which field outside of the sampling is of a wrong type."""
    for name in ("request_id", "session", "group", "policy"):
        if not isinstance(value := getattr(request, name), str):
            return f"{name} must be a string, not {_short(value)}"
    for name in ("num_answer_tokens", "priority"):
        if not _is_integer(value := getattr(request, name)):
            return f"{name} must be an integer, not {_short(value)}"
    if not _is_list_of(request.streams, str):
        return f"streams must be a list of strings, not {_short(request.streams)}"
    if not hasattr(request.prompt_ids, "__len__") or isinstance(request.prompt_ids, (str, bytes)):
        return f"prompt_ids must be a list of integers, not {_short(request.prompt_ids)}"
    return ""


def _wrong_sampling(sampling: Sampling) -> str:
    """Return what of the sampling is of a wrong type or out of range."""
    for name in ("max_tokens", "top_k", "seed"):
        if not _is_integer(value := getattr(sampling, name)):
            return f"{name} must be an integer, not {_short(value)}"
    for name in ("temperature", "top_p", "min_p"):
        if not isinstance(value := getattr(sampling, name), (int, float)) or isinstance(value, bool):
            return f"{name} must be a number, not {_short(value)}"
    if sampling.max_tokens < 1:
        return f"max_tokens must be at least 1, not {_short(sampling.max_tokens)}"
    if not 0 <= sampling.temperature <= MAX_TEMPERATURE:
        return f"temperature must be from 0 to {MAX_TEMPERATURE:g}, not {_short(sampling.temperature)}"
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        return f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, not {sampling.temperature}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p must be above 0 and at most 1, not {_short(sampling.top_p)}"
    if sampling.top_k < 0:
        return f"top_k must be at least 0, not {_short(sampling.top_k)}"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p must be from 0 to 1, not {_short(sampling.min_p)}"
    if sampling.seed.bit_length() > _MAX_SEED_BITS:
        return f"seed must be of at most {_MAX_SEED_BITS} bits, not {sampling.seed.bit_length()}"
    if not (_is_list_of(sampling.stop_ids, int) and _are_integers(sampling.stop_ids)):
        return f"stop_ids must be a list of integers, not {_short(sampling.stop_ids)}"
    if not _is_list_of(sampling.stop_strings, str):
        return f"stop_strings must be a list of strings, not {_short(sampling.stop_strings)}"
    if any("\ud800" <= letter <= "\udfff" for text in sampling.stop_strings for letter in text):
        return f"stop_strings must be text, without lone surrogates: {_short(sampling.stop_strings)}"
    return ""


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, (tuple, list, frozenset, set, array)) and all(
        isinstance(each, kind) for each in value
    )


def _are_integers(values: Any) -> bool:
    if isinstance(values, array):
        return values.typecode in _INTEGERS
    return all(isinstance(each, Integral) and not isinstance(each, bool) for each in values)


def _short(value: object) -> str:
    """Return what fits a message."""
    if isinstance(value, int) and value.bit_length() > _MAX_SEED_BITS:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # an integer in it has more digits than Python prints
        return f"a {type(value).__name__} of such"
    return text if len(text) <= 80 else f"{text[:77]}..."
