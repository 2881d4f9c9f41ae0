"""Journals of runs that the modelled driver simulated, in memory: what is true of them is known."""

from __future__ import annotations

from dataclasses import replace

from headway.config.load import load_config
from headway.config.scheduler import scheduler_settings
from headway.core.codec import to_plain
from headway.matching.engine import MeasuredEngine
from headway.matching.fleet import FleetOf
from headway.matching.simulate_models import ModelledDriver
from headway.matching.spec import FleetSettings, TimingSettings, TrainerPoolSettings, WorkloadSettings
from headway.matching.trainer_model import RooflineTrainer
from headway.matching.workload import DrawnWorkload
from headway.telemetry.header import new_header
from headway.telemetry.records import Entry
from tests.simulation.journals import ARITHMETIC

TIMINGS = TimingSettings(
    decode_base_s=0.02, decode_row_s=0.0005, decode_token_s=2e-6, prefill_base_s=0.004, prefill_token_s=2e-4,
    kv_tokens=0, step_base_s=2.0, step_row_s=0.0, step_token_s=2e-4, load_s=0.25, publish_s=0.5, apply_s=0.1,
    save_s=1.0,
)  # fmt: skip


class MemoryJournal:
    """A journal that was never written: a header, and entries as they come."""

    def __init__(self, header, entries=()):
        self.header = header
        self.entries = list(entries)

    def __iter__(self):
        return iter(self.entries)

    def write_event(self, seq, t, event, commands, notes):
        self.entries.append(Entry(seq, t, event, tuple(commands), tuple(notes)))


def modelled_run(workload=None, *overrides, timings=TIMINGS, fleet=None, steps=30, seed=1):
    """Simulate a run of the arithmetic environment; return its journal."""
    config = load_config(None, [*ARITHMETIC, "eval.num_tasks=0", *overrides, f"stop.steps={steps}"])
    settings = scheduler_settings(config)
    journal = MemoryJournal(new_header(config=to_plain(config), seed=0, queue=to_plain(settings)))
    workload = workload or WorkloadSettings()
    ModelledDriver(
        replace(settings),
        engine=MeasuredEngine(
            None, timings, max_running=config.generator.max_running, kv_tokens=timings.kv_tokens or 0
        ),
        replicas=config.generator.replicas,
        trainer=RooflineTrainer(None, None, TrainerPoolSettings(), timings, None, 0.0, 0.0),
        workload=DrawnWorkload(workload, max_context_tokens=config.generator.max_context_tokens),
        fleet=FleetOf(fleet or FleetSettings()),
        seed=seed,
        journal=journal,
        control=config.control if config.control.mode == "on" else None,
    ).run()
    return journal
