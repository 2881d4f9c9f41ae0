"""From rows to the sequences that the trainer learns from. No torch.

A row refers to a rollout's payload; each of the payload's samples gives one sequence. Every trained token
of a rollout carries the row's advantage and one weight, whichever sample it is in.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headway.algorithms.normaliser import Denominators, token_weight
from headway.core.errors import HeadwayError
from headway.core.payload import read_payload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Row
    from headway.core.records import TrainingSample, VersionSpan


class FetchedRow(NamedTuple):
    """A row and the samples that it refers to."""

    row: Row
    samples: list[TrainingSample]

    @property
    def num_trained_tokens(self) -> int:
        """Trained tokens in all samples."""
        return sum(sample.num_trainable for sample in self.samples)


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One sample with what the loss needs; k trained tokens among n."""

    rollout: str
    group: str
    token_ids: array[int]  # [n]
    positions: list[int]  # indices of the trained tokens, rising, all >= 1, [k]
    behaviour_logp: list[float]  # nats, [k]
    fresh: list[bool]  # the version being trained sampled the token, [k]
    temperature: float  # of sampling, > 0
    advantage: float  # of every trained token
    weight: float  # of every trained token, from the normaliser


def fetch_rows(rows: Sequence[Row], payload_dir: Path, vocab: int) -> list[FetchedRow]:
    """Read the payloads of rows and check them.

    Raises HeadwayError, naming the rollout, for a row that cannot be trained, and for no trained tokens at
    all. A row whose tokens are all masked is allowed beside others.
    """
    fetched = [FetchedRow(row, read_payload(payload_dir, row.payload).samples) for row in rows]
    for row, samples in fetched:
        if not math.isfinite(row.advantage):
            raise HeadwayError(f"the advantage of rollout {row.rollout} must be finite", value=row.advantage)
        if not samples:
            raise HeadwayError(f"rollout {row.rollout} must have at least one sample")
        for sample in samples:
            _check(sample, row.rollout, vocab)
    if not any(item.num_trained_tokens for item in fetched):
        names = [row.rollout for row in rows]
        raise HeadwayError("a batch must have at least one trained token", value=names)
    return fetched


def count(fetched: Sequence[FetchedRow]) -> Denominators:
    """Return the denominators of a whole optimizer batch; never call it with a part of one."""
    prompts: Counter[str] = Counter()
    for item in fetched:
        if tokens := item.num_trained_tokens:
            prompts[item.row.group] += tokens
    num_sequences = sum(item.num_trained_tokens > 0 for item in fetched)
    return Denominators(prompts.total(), num_sequences, len(prompts), dict(prompts))


def build_sequences(
    fetched: Sequence[FetchedRow],
    denominators: Denominators,
    settings: AlgorithmSettings,
    *,
    steps: int,
    lineage: int | None,
) -> list[TrainSequence]:
    """Return one sequence for each sample, in order.

    `steps` are the optimizer steps applied and `lineage` is the life of the run, None when it is not known:
    a token of that version is fresh.
    """
    sequences: list[TrainSequence] = []
    for row, samples in fetched:
        rollout_tokens = sum(sample.num_trainable for sample in samples)
        weight = 0.0
        if rollout_tokens:
            weight = token_weight(
                settings.normaliser,
                denominators,
                group=row.group,
                rollout_tokens=rollout_tokens,
                constant_tokens=settings.constant_tokens,
            )
        for sample in samples:
            positions = [index for index, flag in enumerate(sample.trainable) if flag]
            fresh = [
                is_fresh
                for span in sample.spans
                for is_fresh in [_is_fresh(span, steps, lineage)] * span.num_tokens
            ]
            behaviour = [sample.logprobs[index] for index in positions]
            sequences.append(
                TrainSequence(
                    row.rollout,
                    row.group,
                    sample.token_ids,
                    positions,
                    behaviour,
                    fresh,
                    sample.temperature,
                    row.advantage,
                    weight,
                )
            )
    return sequences


def _is_fresh(span: VersionSpan, steps: int, lineage: int | None) -> bool:
    return span.number == steps and lineage in (None, span.lineage)


def _check(sample: TrainingSample, rollout: str, vocab: int) -> None:
    num = len(sample.token_ids)
    if num == 0:
        raise HeadwayError(f"a sample of rollout {rollout} must have tokens", value=num)
    if not num == len(sample.trainable) == len(sample.logprobs):
        lengths = (num, len(sample.trainable), len(sample.logprobs))
        raise HeadwayError(
            f"the arrays of a sample of rollout {rollout} must be of one length", value=lengths
        )
    if min(sample.token_ids) < 0 or max(sample.token_ids) >= vocab:
        rule = f"token ids of rollout {rollout} must be below the model's vocabulary of {vocab}"
        raise HeadwayError(rule, value=(min(sample.token_ids), max(sample.token_ids)))
    if sample.trainable[0]:
        raise HeadwayError(f"the first token of rollout {rollout} cannot be trained: nothing precedes it")
    trained = sample.num_trainable
    if (spanned := sum(span.num_tokens for span in sample.spans)) != trained:
        rule = f"version spans of rollout {rollout} must cover its {trained} trained tokens"
        raise HeadwayError(rule, value=spanned)
    if trained and not sample.temperature > 0:
        rule = f"trained tokens of rollout {rollout} must be sampled at a temperature above 0"
        raise HeadwayError(rule, value=sample.temperature, remedy="Greedy answers are for evaluation")
    for logp, flag in zip(sample.logprobs, sample.trainable, strict=True):
        if flag and not math.isfinite(logp):
            raise HeadwayError(f"behaviour log-probs of rollout {rollout} must be finite", value=logp)
