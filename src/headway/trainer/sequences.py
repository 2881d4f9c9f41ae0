"""From rows to the sequences that the trainer learns from. No torch.

A row refers to a rollout's payload; each of the payload's samples gives one sequence. Every trained token
of a rollout carries the row's advantage, or that of its turn, and one weight, whichever sample it is in.

Tokens of the row's masked versions are not trained: they leave the denominators, as if they had never been
trainable. The row's weight multiplies its tokens' weights and leaves the denominators as they are.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headway.algorithms.normaliser import Denominators, token_weight
from headway.core.errors import HeadwayError
from headway.core.kept import Kept
from headway.core.payload import read_payload
from headway.core.records import FLAGS, ROUTED_EXPERTS, Stream, TurnSpan, VersionSpan, merge_spans
from headway.trainer.kept import check_kept

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Row
    from headway.core.records import TrainingSample


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
    advantages: Sequence[float]  # [k]
    weight: float  # of every trained token, from the normaliser and the row
    keep: Sequence[bool] | None = None  # what the loss's batch half said, [k]
    routes: Stream | None = None  # experts of each token, where they are replayed, [n, expert layers, k]
    kept: Kept | None = None  # ids that each trained token was drawn from, where truncated, [k]


def fetch_rows(rows: Sequence[Row], payload_dir: Path, vocab: int, *, whole: bool = True) -> list[FetchedRow]:
    """Read the payloads of rows and check them.

    Raises HeadwayError, naming the rollout, for a row that cannot be trained, and for no trained tokens at
    all, which a part of a batch (`whole` false) may lack. A row whose tokens are all masked is allowed beside
    others.
    """
    fetched = [FetchedRow(row, read_payload(payload_dir, row.payload).samples) for row in rows]
    for row, samples in fetched:
        if not all(map(math.isfinite, (row.advantage, *row.turns))):
            value = (row.advantage, *row.turns)
            raise HeadwayError(f"the advantage of rollout {row.rollout} must be finite", value=value)
        if not (math.isfinite(row.weight) and row.weight >= 0):
            rule = f"the weight of rollout {row.rollout} must be finite and at least 0"
            raise HeadwayError(rule, value=row.weight)
        if not samples:
            raise HeadwayError(f"rollout {row.rollout} must have at least one sample")
        for sample in samples:
            _check(sample, row, vocab)
            check_kept(sample, row.rollout, vocab)
    fetched = [
        FetchedRow(
            row, [without_versions(sample, row.masked) for sample in samples] if row.masked else samples
        )
        for row, samples in fetched
    ]
    if whole and not any(item.num_trained_tokens for item in fetched):
        names = [row.rollout for row in rows]
        raise HeadwayError("a batch must have at least one trained token", value=names)
    return fetched


def without_versions(sample: TrainingSample, masked: Sequence[tuple[int, int]]) -> TrainingSample:
    """Return the sample with the tokens of these versions (lineage, number) not trainable."""
    dropped = set(masked)
    if not any((span.lineage, span.number) in dropped for span in sample.spans):
        return sample
    keep = [
        (span.lineage, span.number) not in dropped for span in sample.spans for _ in range(span.num_tokens)
    ]
    flags, trainable = iter(keep), array(FLAGS, sample.trainable)
    for index, flag in enumerate(trainable):
        if flag:
            trainable[index] = int(next(flags))
    start, turns = 0, list[TurnSpan]()
    for turn in sample.turns:
        turns.append(TurnSpan(turn.turn, sum(keep[start : start + turn.num_tokens])))
        start += turn.num_tokens
    spans = merge_spans([span for span in sample.spans if (span.lineage, span.number) not in dropped])
    kept = Kept.of(sample.streams)
    streams = sample.streams | kept.only(keep).streams() if kept else sample.streams
    return replace(sample, trainable=trainable, spans=spans, turns=turns, streams=streams)


def count(fetched: Sequence[FetchedRow], *, of_part: bool = False) -> Denominators:
    """Return the denominators of a whole optimizer batch; of a part of one only with `of_part`."""
    prompts: Counter[str] = Counter()
    for item in fetched:
        if tokens := item.num_trained_tokens:
            prompts[item.row.group] += tokens
    num_sequences = sum(item.num_trained_tokens > 0 for item in fetched)
    return Denominators(prompts.total(), num_sequences, len(prompts), dict(prompts), of_part)


def build_sequences(
    fetched: Sequence[FetchedRow],
    denominators: Denominators,
    settings: AlgorithmSettings,
    *,
    steps: int,
    lineage: int | None,
    advantages: Mapping[str, Sequence[float]] | None = None,
    keep: Mapping[str, Sequence[bool]] | None = None,
) -> list[TrainSequence]:
    """Return one sequence for each sample, in order.

    `steps` are the optimizer steps applied and `lineage` is the life of the run, None when it is not known:
    a token of that version is fresh. `advantages` and `keep`, where given, hold what the batch-wide halves
    said of each rollout's trained tokens, all its samples' one after the other.
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
        at = 0
        for sample in samples:
            positions = [index for index, flag in enumerate(sample.trainable) if flag]
            fresh = [
                is_fresh
                for span in sample.spans
                for is_fresh in [_is_fresh(span, steps, lineage)] * span.num_tokens
            ]
            behaviour = [sample.logprobs[index] for index in positions]
            part = slice(at, at := at + len(positions))
            sequences.append(
                TrainSequence(
                    row.rollout,
                    row.group,
                    sample.token_ids,
                    positions,
                    behaviour,
                    fresh,
                    sample.temperature,
                    advantages[row.rollout][part] if advantages else _advantages(row, sample, len(positions)),
                    weight * row.weight,
                    keep[row.rollout][part] if keep else None,
                    sample.streams.get(ROUTED_EXPERTS),
                    Kept.of(sample.streams),
                )
            )
    return sequences


def _is_fresh(span: VersionSpan, steps: int, lineage: int | None) -> bool:
    return span.number == steps and lineage in (None, span.lineage)


def _advantages(row: Row, sample: TrainingSample, num_trained: int) -> list[float]:
    """Return the advantage of each trained token: its turn's where the row has those, else the row's."""
    if not row.turns:
        return [row.advantage] * num_trained
    return [value for span in sample.turns for value in [row.turns[span.turn]] * span.num_tokens]


def _check(sample: TrainingSample, row: Row, vocab: int) -> None:
    num, rollout = len(sample.token_ids), row.rollout
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
    if row.turns:
        known = [span for span in sample.turns if span.turn < len(row.turns)]
        if (spanned := sum(span.num_tokens for span in known)) != trained:
            rule = f"the {len(row.turns)} turns of rollout {rollout} must cover its {trained} trained tokens"
            raise HeadwayError(rule, value=spanned)
    if trained and not sample.temperature > 0:
        rule = f"trained tokens of rollout {rollout} must be sampled at a temperature above 0"
        raise HeadwayError(rule, value=sample.temperature, remedy="Greedy answers are for evaluation")
    for logp, flag in zip(sample.logprobs, sample.trainable, strict=True):
        if flag and not math.isfinite(logp):
            raise HeadwayError(f"behaviour log-probs of rollout {rollout} must be finite", value=logp)
