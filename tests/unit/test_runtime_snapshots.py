"""A scheduler is the same whichever snapshot it is rebuilt from, and whether there is one at all."""

from dataclasses import replace

import pytest

from headway.core.codec import to_plain
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.runtime import snapshots
from headway.telemetry.header import new_header
from headway.telemetry.journal import read_journal
from headway.telemetry.journal_writer import JournalWriter

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=2, batch_size=4, bound=1),
    stop=StopSettings(steps=3),
    eval=EvalSettings(num_tasks=2),
)


@pytest.fixture
def run_dir(tmp_path):
    """A simulated run's journal, with a snapshot at each of three events."""
    (tmp_path / "checkpoints").mkdir()
    run = SimRun(Scheduler(SETTINGS))
    SimulatedDriver(run, SimSettings(), 1).play()
    journal = JournalWriter(tmp_path / "journal.jsonl")
    journal.write_header(new_header(config={}, seed=0, queue=to_plain(SETTINGS)))
    again = Scheduler(SETTINGS)
    for entry in run.entries:
        commands, notes = again.handle(entry.event, round(entry.t, 6))
        journal.write_event(entry.seq, round(entry.t, 6), entry.event, commands, notes)
        if entry.seq in (20, 40, 60):
            snapshots.write(tmp_path, again, entry.seq, keep=2)
    journal.close()
    return tmp_path


def rebuilt(run_dir):
    scheduler, next_seq, last_s = snapshots.rebuild(run_dir, SETTINGS, read_journal(run_dir))
    return scheduler.snapshot(), next_seq, last_s


def test_tables_keep_their_order(tmp_path):
    """The scheduler goes round its groups in the order they were made, and what it says depends on that."""
    settings = replace(SETTINGS, eval=EvalSettings(num_tasks=2, every_steps=1))
    (tmp_path / "checkpoints").mkdir()
    run, scheduler = SimRun(Scheduler(settings)), Scheduler(settings)
    SimulatedDriver(run, SimSettings(), 1).play()
    mixed = 0
    for entry in run.entries:
        scheduler.handle(entry.event, entry.t)
        names = list(scheduler.state.groups)
        if names == sorted(names):
            continue
        mixed += 1  # an evaluation that began later than groups to be trained
        snapshots.write(tmp_path, scheduler, entry.seq, keep=1)
        (path,) = (tmp_path / "checkpoints").iterdir()
        saved = snapshots._read(path)
        assert saved is not None
        assert list(Scheduler.restore(settings, saved[1]).state.groups) == names
    assert mixed


def test_a_damaged_snapshot_is_passed_over(run_dir):
    files = sorted((run_dir / "checkpoints").iterdir())
    assert [file.name for file in files] == ["scheduler-000000000040.json", "scheduler-000000000060.json"]
    expected = rebuilt(run_dir)
    files[1].write_bytes(files[1].read_bytes().replace(b'"step":', b'"stop":', 1))
    assert rebuilt(run_dir) == expected
    files[0].write_bytes(b"torn")
    assert rebuilt(run_dir) == expected
    for file in files:
        file.unlink()
    assert rebuilt(run_dir) == expected
