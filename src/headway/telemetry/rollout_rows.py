"""Rollouts as rows for other programs: one row a training sample, with its rollout's facts.

A rollout has one training sample, or one a branch. One without tokens (it failed, it still runs, its tokens
were dropped) has one row whose `sample` is null and whose `missing` says why. Invariant: token ids, masks and
log-probs are the payload's, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.codec import to_plain
from headway.core.payload import Payload
from headway.core.records import Latency
from headway.telemetry.transcript import token_advantages

if TYPE_CHECKING:
    from headway.telemetry.rollout_record import RolloutRecord


class Column(NamedTuple):
    """A column: its name, its Parquet type, and what it means."""

    name: str
    kind: str
    doc: str


_SPAN = "list<struct<lineage: int64, number: int64, num_tokens: int64>>"
_FAILURE = "list<struct<attempt: int64, owner: string, cause: string, message: string, retried: bool>>"

COLUMNS = (
    Column("run", "string", "name of the run's directory"),
    Column("rollout", "string", "id of the rollout"),
    Column("group", "string", "id of its group"),
    Column("task_id", "string", "its task"),
    Column("level", "int64", "difficulty, 0 where the environment has none"),
    Column("source", "string", "task source, empty where the run has only one"),
    Column("purpose", "string", "`train` or `eval`"),
    Column("state", "string", "its fate, or where it is: running, scoring, scored, queued, training"),
    Column("reason", "string", "of its fate, mostly empty"),
    Column("attempt", "int64", "from 0; the newest"),
    Column("started_s", "double", "seconds since the run began, stops left out"),
    Column("ended_s", "double", "when it was scored or failed; null while it goes on"),
    Column("reward", "double", "null before it is scored"),
    Column("reasons", "list<string>", "of the reward"),
    Column("reward_metrics", "map<string, double>", "the environment's own measures; an object in JSONL"),
    Column("turn_rewards", "list<double>", "one an answer, or empty"),
    Column("advantage", "double", "null where its group has none"),
    Column("turn_advantages", "list<double>", "one an answer, or empty"),
    Column("num_prompt_tokens", "int64", "tokens that environment and template wrote, all branches"),
    Column("num_tokens", "int64", "tokens that the policy sampled, all branches"),
    Column("num_turns", "int64", "answers"),
    Column("num_tool_calls", "int64", "calls to the sandbox"),
    Column("truncated", "bool", "an answer hit a length limit"),
    Column("step", "int64", "optimizer step that trains or trained on it, in the surviving weights"),
    Column("token_staleness", "int64", "age of its oldest trained token in that step"),
    Column("trajectory_staleness", "int64", "age of its first token in that step"),
    Column("environment_staleness", "int64", "largest age of the sandbox's state that it acted on"),
    Column("weight", "double", "of its tokens in the loss, below 1 where staleness weighs it down"),
    Column(
        "masked_versions",
        "list<struct<lineage: int64, number: int64>>",
        "versions whose tokens the step left out for their age",
    ),
    Column("end_to_end_s", "double", "start to score; the seven parts below sum to it"),
    Column("queue_s", "double", "waiting for a place, and hand-over"),
    Column("parked_s", "double", "standing still"),
    Column("sandbox_start_s", "double", "starting sandboxes"),
    Column("prefill_s", "double", "computing prompts"),
    Column("decode_s", "double", "sampling"),
    Column("tool_s", "double", "tool calls"),
    Column("score_s", "double", "scoring"),
    Column("failures", _FAILURE, "attempts that failed"),
    Column("messages", "list<struct<role: string, content: string>>", "the conversation, as text"),
    Column("outcome", "string", "what the verifier got, as JSON; an object in JSONL"),
    Column("missing", "string", "why there are no tokens; empty where there are"),
    Column("sample", "int64", "which training sample of its rollout, from 0; null without tokens"),
    Column("num_samples", "int64", "training samples of its rollout"),
    Column("token_ids", "list<int32>", "all tokens of the sample, n"),
    Column("trainable", "list<int8>", "1 where the policy sampled the token and the loss counts it, n"),
    Column("logprobs", "list<float>", "behaviour log-probs in nats, 0 where not trainable, n"),
    Column("advantages", "list<double>", "of each token, 0 where not trainable; n, or empty without any"),
    Column("spans", _SPAN, "policy versions of the trainable tokens in order"),
    Column("turns", "list<struct<turn: int64, num_tokens: int64>>", "likewise, the turns"),
    Column("temperature", "double", "of sampling"),
)

_PARTS = tuple(part.name for part in fields(Latency))
_SAMPLE = ("sample", "token_ids", "trainable", "logprobs", "advantages", "spans", "turns", "temperature")
_OF_RECORD = tuple(
    column.name
    for column in COLUMNS
    if column.name
    not in (*_PARTS, *_SAMPLE, "run", "masked_versions", "messages", "outcome", "missing", "num_samples")
)


def rows(run: str, record: RolloutRecord, payload: Payload | str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one rollout: values of COLUMNS, in their order.

    `payload` is what `fetch_payload` returned.
    """
    there = isinstance(payload, Payload) and payload.samples
    latency = dict.fromkeys(_PARTS) if record.latency is None else asdict(record.latency)
    common: dict[str, Any] = {
        "run": run,
        **{name: to_plain(getattr(record, name)) for name in _OF_RECORD},
        **latency,
        "masked_versions": [{"lineage": lineage, "number": number} for lineage, number in record.masked],
        "messages": [],
        "outcome": {},
        "missing": payload if isinstance(payload, str) else "" if there else "it has no tokens",
        "num_samples": 0,
        **dict.fromkeys(_SAMPLE, ()),
        "sample": None,
        "temperature": None,
    }
    if isinstance(payload, Payload):
        common["messages"] = [
            {"role": str(message["role"]), "content": str(message["content"])}
            for message in payload.transcript
        ]
        common["outcome"] = payload.outcome
    if not isinstance(payload, Payload) or not payload.samples:
        yield _ordered(common)
        return
    for index, sample in enumerate(payload.samples):
        yield _ordered(
            {
                **common,
                "sample": index,
                "num_samples": len(payload.samples),
                "token_ids": sample.token_ids,
                "trainable": sample.trainable,
                "logprobs": sample.logprobs,
                "advantages": token_advantages(record, sample),
                "spans": [span._asdict() for span in sample.spans],
                "turns": [turn._asdict() for turn in sample.turns],
                "temperature": sample.temperature,
            }
        )


def _ordered(row: dict[str, Any]) -> dict[str, Any]:
    return {column.name: row[column.name] for column in COLUMNS}
