"""The first line of a journal: everything about a run that no event tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import headway
from headway.core.clock import wall_time
from headway.core.events import SCHEMA_VERSION
from headway.core.facts import ModelFacts
from headway.telemetry.machine import describe_machine


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """What a run is, so that every metric and a replay derive from the journal alone."""

    headway: str  # version of the package that wrote it
    code: str  # git commit of the code, "" when unknown
    created: str  # ISO time
    config: dict[str, Any]  # resolved configuration
    seed: int
    model: ModelFacts | None
    queue: dict[str, Any]  # the scheduler's settings, plain
    prices: dict[str, float | None] = field(default_factory=dict[str, "float | None"])  # usd_per_hour
    lora_params: int | None = None  # None when all weights are trained
    peak_flops_per_s: float | None = None  # of the trainer's accelerators together, None when unknown
    subject: str = ""  # what a run that only evaluates measures, in words
    machine: str = ""  # that the run began on, in words; "" when not recorded
    simulated: bool = False  # times are virtual, and no model ran
    schema: int = SCHEMA_VERSION  # of events, commands and notes


def new_header(
    *,
    config: dict[str, Any],
    seed: int,
    queue: dict[str, Any],
    code: str = "",
    model: ModelFacts | None = None,
    lora_params: int | None = None,
    usd_per_hour: float | None = None,
    peak_flops_per_s: float | None = None,
    subject: str = "",
) -> JournalHeader:
    """Return the header of a run that begins now."""
    return JournalHeader(
        headway=headway.__version__,
        code=code,
        created=datetime.fromtimestamp(wall_time(), tz=UTC).isoformat(timespec="seconds"),
        config=config,
        seed=seed,
        model=model,
        queue=queue,
        prices={"usd_per_hour": usd_per_hour},
        lora_params=lora_params,
        peak_flops_per_s=peak_flops_per_s,
        subject=subject,
        machine=describe_machine(),
    )
