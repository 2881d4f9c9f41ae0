"""A simulated run on disk: the directory, journal and summary that a real one leaves, without a model."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.compose import Config
from headway.config.show import write_config
from headway.core.codec import to_plain
from headway.core.facts import ModelFacts
from headway.matching.build import models_of
from headway.matching.hardware import find_accelerator
from headway.matching.plan import usd_per_hour
from headway.matching.simulate_models import ModelledDriver, SimSummary
from headway.runtime import directory
from headway.runtime.life import calm_collector
from headway.telemetry.header import JournalHeader, new_header
from headway.telemetry.journal import read_journal
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.report import report_json

if TYPE_CHECKING:
    from headway.matching.model_facts import ModelNumbers
    from headway.matching.spec_load import Spec

FOLDERS = ("payloads", "checkpoints", "logs")


def new_directory(spec: Spec, where: Path | None) -> Path:
    """Make the directory of a simulated run: the one that is asked for, or one named as `train` names its.

    Raises RunDirectoryError when it exists already or cannot be made.
    """
    if where is not None:
        return directory.create(where.parent, where.name, FOLDERS)
    run = spec.config.run
    parent = Path(run.dir)
    return directory.create(parent, run.name or directory.free_name(parent, spec.name), FOLDERS)


def simulate_spec(
    spec: Spec, *, steps: int = 0, seed: int = 0, warmup_steps: int = 0, run_dir: Path | None = None
) -> SimSummary:
    """Simulate a SPEC's run.

    Args:
        spec: what to simulate.
        steps: optimizer steps; 0 takes stop.steps.
        seed: of all chance.
        warmup_steps: first steps that the metrics leave out; those of the journal leave nothing out.
        run_dir: where journal and summary are written, an empty run directory; None writes nothing, which is
            faster, and memory does not grow with the run.
    """
    calm_collector()
    models = models_of(spec)
    scheduler = spec.scheduler
    if steps:
        scheduler = replace(scheduler, stop=replace(scheduler.stop, steps=steps))
    scheduler = replace(scheduler, num_replicas=models.replicas)
    journal = None
    if run_dir is not None:
        run = Config(**{field.name: getattr(spec.config, field.name) for field in fields(Config)})
        write_config(run, run_dir / directory.CONFIG)  # the journal's header has the other sections too
        journal = JournalWriter(run_dir / directory.JOURNAL)
        header = header_of(spec, seed)
        journal.write_header(replace(header, queue=to_plain(scheduler)))
    driver = ModelledDriver(
        scheduler,
        engine=models.engine,
        replicas=models.replicas,
        trainer=models.trainer,
        workload=models.workload,
        fleet=models.fleet,
        seed=seed,
        journal=journal,
        control=spec.config.control if spec.config.control.mode != "off" else None,
    )
    try:
        summary = driver.run(warmup_steps=warmup_steps)
    finally:
        if journal is not None:
            journal.close()
    if run_dir is not None:
        text = report_json(RunMetrics.of(read_journal(run_dir)).summary())
        (run_dir / directory.SUMMARY).write_text(text + "\n", encoding="utf-8")
    return summary


def header_of(spec: Spec, seed: int) -> JournalHeader:
    """Return the journal's header of a simulated run; the scheduler's settings are those of the SPEC."""
    header = new_header(
        config=to_plain(spec.config),
        seed=seed,
        queue=to_plain(spec.scheduler),
        code=directory.code_version(),
        model=None if spec.model is None else _facts(spec.model),
        usd_per_hour=usd_per_hour(spec),
        peak_flops_per_s=spec.config.telemetry.peak_flops_per_s or trainer_peak(spec),
    )
    return replace(header, machine=f"simulated from {spec.name}, seed {seed}: no model ran", simulated=True)


def trainer_peak(spec: Spec) -> float | None:
    """Return the dense peak FLOP/s of the trainer's accelerators together; None where none is named."""
    pool = spec.hardware.trainer
    if not pool.accelerator:
        return None
    accelerator = find_accelerator(pool.accelerator, "hardware.trainer.accelerator")
    return pool.count * accelerator.peak(pool.weights)


def _facts(model: ModelNumbers) -> ModelFacts | None:
    """Return a model's shape as journals have it; None for one whose attention they cannot describe."""
    if model.latent is not None or model.indexer is not None:
        return None
    return ModelFacts(
        num_params=model.params,
        num_layers=model.layers,
        hidden=model.hidden,
        num_heads=model.heads,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        intermediate=model.intermediate,
        vocab=model.vocab,
        max_context_tokens=model.max_context_tokens,
        num_expert_layers=model.expert_layers,
        num_experts=model.experts,
        experts_per_token=model.experts_per_token,
        expert_intermediate=model.expert_intermediate,
    )


def as_json(summary: SimSummary, run_dir: Path | None) -> str:
    """Return a summary as one JSON object."""
    plain = {
        "run": None if run_dir is None else str(run_dir),
        "num_events": summary.num_events,
        **summary.metrics,
    }
    return json.dumps(plain, indent=2)
