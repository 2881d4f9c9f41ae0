"""Rollouts of a run as plain values, with the run's own tokenizer. Loads no torch and downloads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import ModelError
from headway.models.checkpoint import find
from headway.renderers.chat import Renderer
from headway.telemetry.journal import read_journal
from headway.telemetry.rollout_select import Selection, select
from headway.telemetry.rollout_table import rollout_table
from headway.telemetry.transcript import fetch_payload, transcript, turn_details

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headway.telemetry.rollout_record import RolloutRecord
    from headway.telemetry.transcript import Decode


def transcripts(
    run: Path, selection: Selection, limit: int | None = None, *, logprobs: bool = False
) -> list[dict[str, Any]]:
    """Return the first `limit` rollouts that a selection means, as `transcript` describes them.

    Where the model's tokenizer is gone, pieces have token ids instead of text and `undecoded` says why.
    """
    records = select(rollout_table(run), selection)[:limit]
    return list(transcripts_of(run, records, logprobs=logprobs))


def transcripts_of(
    run: Path, records: Sequence[RolloutRecord], *, logprobs: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield these rollouts of a run one by one; see `transcripts`."""
    decode, undecoded = run_decoder(run)
    details = turn_details(read_journal(run), records)
    for record in records:
        found = transcript(
            record, fetch_payload(run, record), decode, details[record.rollout], logprobs=logprobs
        )
        yield {**found, "undecoded": undecoded}


def run_decoder(run: Path) -> tuple[Decode | None, str]:
    """Return what decodes a run's tokens, special ones shown; or None, and why not."""
    model = str(cast("dict[str, Any]", read_journal(run).header.config.get("model", {})).get("path", ""))
    path = find(model)
    if path is None:
        return None, f"the tokenizer of the run's model {model!r} is not on this machine"
    try:
        renderer = Renderer(path)
    except ModelError as error:
        return None, f"the tokenizer of the run's model cannot be loaded: {error.rule}"
    return lambda ids: renderer.decode(ids, skip_special=False), ""
