"""Journals of simulated runs, for what reads journals."""

from __future__ import annotations

from headway.config.load import load_config
from headway.config.scheduler import scheduler_settings
from headway.core.codec import to_plain
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.telemetry.header import new_header
from headway.telemetry.journal_writer import JournalWriter

ARITHMETIC = ("model.path=/no/model", "environment.name=arithmetic")


def simulated_journal(path, *overrides, sim=None, num_entries=None, more=(), config=None, **header):
    """Write RUN/journal.jsonl of a simulated run; return its entries.

    Args:
        path: the run's directory, which exists.
        overrides: on a config of the arithmetic environment.
        sim: how the simulated world behaves.
        num_entries: only so many, as of a run that was killed.
        more: (event, commands, notes) to write after the last entry, at its time.
        config: in place of that of the overrides.
        header: further facts for the journal's header.
    """
    config = config or load_config(None, [*ARITHMETIC, *overrides])
    settings = scheduler_settings(config)
    run = SimRun(Scheduler(settings))
    SimulatedDriver(run, sim or SimSettings(), seed=1).play()
    writer = JournalWriter(path / "journal.jsonl")
    writer.write_header(new_header(config=to_plain(config), seed=0, queue=to_plain(settings), **header))
    for entry in run.entries[:num_entries]:
        writer.write_event(entry.seq, entry.t, entry.event, entry.commands, entry.notes)
    for number, (event, commands, notes) in enumerate(more, 1):
        last = run.entries[-1]
        writer.write_event(last.seq + number, last.t, event, commands, notes)
    writer.close()
    return run.entries
