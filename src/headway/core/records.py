"""Tasks, turns, training samples, rewards: what a rollout is made of.

Token arrays are buffers (`array.array`), never lists of objects: `TOKENS` for ids, `FLOATS` for
log-probs, `FLAGS` for masks. A rollout is a tree of turns; each root-to-leaf branch yields one
TrainingSample. A turn that branches share is trainable in the first branch only.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TOKENS = "i"
FLOATS = "f"
FLAGS = "b"

# The stream of the experts that each token was sent to when the KV was computed that the last answer attended
# to: axis token, int16 [n, expert layers, experts per token], -1 where it is not known.
ROUTED_EXPERTS = "routed_experts"

# What truncated sampling (top-k, top-p, min-p) drew each token from: two streams that come together, see
# core/kept.py. KEPT_COUNTS: axis sampled, int32 [n], how many ids were kept, 0 for the whole vocabulary.
# KEPT_IDS: axis kept, int32 [sum of the counts], each token's ids one after the other, rising.
KEPT_IDS = "kept_ids"
KEPT_COUNTS = "kept_counts"

# Log-prob of each sampled token under the model itself, at temperature 1 and untruncated: axis sampled,
# float32 [n], nats.
MODEL_LOGPROBS = "model_logprobs"

# Log-prob of each token of the prompt given those before it, under the model itself: axis prompt,
# float32 [p], nats. The first is NaN, for nothing precedes it; so is what an aborted request had not come to.
# Where weights changed on the way and KV was kept, each is of the weights that computed it.
PROMPT_LOGPROBS = "prompt_logprobs"

Purpose = Literal["train", "eval"]
FinishReason = Literal["stop", "length", "aborted", "lost", "rejected"]


class VersionSpan(NamedTuple):
    """A run of consecutive sampled tokens that one policy version generated."""

    lineage: int  # which life of the run: 0 at first, one more after each resume
    number: int  # optimizer steps applied to the weights
    num_tokens: int  # length of the run, tokens


class TurnSpan(NamedTuple):
    """The sampled tokens of one turn."""

    turn: int  # index among the rollout's answers, in the order in which they were asked for
    num_tokens: int


def merge_spans(spans: list[VersionSpan]) -> list[VersionSpan]:
    """Join neighbours of the same version and drop empty ones; order is kept."""
    merged: list[VersionSpan] = []
    for span in spans:
        if span.num_tokens == 0:
            continue
        if merged and merged[-1][:2] == span[:2]:
            merged[-1] = VersionSpan(span.lineage, span.number, merged[-1].num_tokens + span.num_tokens)
        else:
            merged.append(span)
    return merged


def without_last(spans: list[VersionSpan], num_tokens: int) -> list[VersionSpan]:
    """Return the spans without their last `num_tokens` tokens."""
    left = sum(span.num_tokens for span in spans) - num_tokens
    kept: list[VersionSpan] = []
    for span in spans:
        if left <= 0:
            break
        kept.append(span._replace(num_tokens=min(span.num_tokens, left)))
        left -= span.num_tokens
    return kept


@dataclass(frozen=True, slots=True)
class Task:
    """One problem that an environment poses."""

    id: str  # unique within the run's environment, such as "train/17"
    split: str  # "train" or "eval"
    level: int  # difficulty level, 0 where the environment has none
    payload: dict[str, Any] = field(default_factory=dict[str, Any])  # JSON values; the environment's own


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the policy is told of it."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of an object: its arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that an answer asks for."""

    id: str  # unique within its conversation
    name: str
    arguments: str  # a JSON object, as text


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str = ""  # of an assistant's message: what it thought before its content
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant's message
    tool_call_id: str = ""  # of a tool's message: the call that it answers
    name: str = ""  # of a tool's message: the tool


@dataclass(frozen=True, slots=True)
class Stream:
    """A named array that travels beside the tokens (routed experts, kept top-p ids, ...)."""

    # What the first dimension counts; sampled: tokens of the engine, in a TrainingSample the trainable ones.
    axis: Literal["token", "sampled", "kept", "prompt", "rollout"]
    dtype: str  # a numpy dtype name, such as "int16"
    shape: tuple[int, ...]  # full shape
    data: bytes  # row-major values


@dataclass(slots=True)
class Turn:
    """One answer of the policy, with the tokens that were put before it.

    Invariant: `token_ids` are the ids that the engine sampled, untouched; text never makes a round trip.
    """

    parent: int  # index of the turn that this one continues, -1 for a root
    prompt_ids: array[int]  # tokens that the environment added since the parent turn, [p]
    token_ids: array[int]  # sampled tokens, [n]
    logprobs: array[float]  # behaviour log-prob of each sampled token, [n], nats
    spans: list[VersionSpan]  # versions of the sampled tokens; lengths sum to n
    finish: FinishReason  # why the engine stopped
    temperature: float  # of sampling; 0 is greedy
    streams: dict[str, Stream] = field(
        default_factory=dict[str, Stream]
    )  # axis token: of its branch, from the root up to and including this turn; sampled: of its own tokens


@dataclass(slots=True)
class TrainingSample:
    """One row of tokens that the trainer learns from.

    Invariants: every array has one entry a token; where `trainable` is 0 the log-prob is 0 and is never
    read; the spans cover the trainable tokens in order.
    """

    token_ids: array[int]  # [n]
    trainable: array[int]  # 1 where the policy sampled the token and the loss counts it, [n]
    logprobs: array[float]  # behaviour log-probs, [n], nats
    spans: list[VersionSpan]  # versions of the trainable tokens in order
    temperature: float  # of sampling
    streams: dict[str, Stream] = field(default_factory=dict[str, Stream])
    turns: list[TurnSpan] = field(default_factory=list[TurnSpan])  # of the trainable tokens in order

    @property
    def num_trainable(self) -> int:
        """Tokens that the loss counts."""
        return sum(self.trainable)


@dataclass(frozen=True, slots=True)
class Reward:
    """What a verifier says of one rollout."""

    score: float  # finite
    reasons: tuple[str, ...] = ()  # short sentences, most important first
    metrics: dict[str, float] = field(
        default_factory=dict[str, float]
    )  # for the report; those not finite are left out
    turns: tuple[float, ...] = ()  # one finite reward for each answer of the policy in order, or empty


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """What a sandbox used, over its whole life or at its end; None where the provider does not tell."""

    cpu_s: float | None = None  # of all its commands
    memory_bytes: int | None = None  # most that its processes held at once
    disk_bytes: int | None = None  # in its work folder
    num_files: int | None = None  # files and folders there


@dataclass(frozen=True, slots=True)
class Latency:
    """Where a rollout's time went, in seconds. The parts sum to the time from its start to its score.

    `queue_s` is waiting for a place anywhere (engine slot, sandbox grant, scorer) and the hand-over
    between processes; `parked_s` is standing still between Park and Resume.
    """

    queue_s: float = 0.0
    parked_s: float = 0.0
    sandbox_start_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tool_s: float = 0.0
    score_s: float = 0.0
