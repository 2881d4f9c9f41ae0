"""No payload that retention lets go is ever asked for again: by a step, a verifier, or another life.

Whole runs with faults, rollbacks and kills are played in the simulation. At each checkpoint, and before each
new life as `headway prune` would, every segment that may go is marked; whatever the run reads or writes
afterwards must lie in another one. Segments are made small, so that there are many.
"""

import pytest

from headway.core.commands import Score, StartRollout, Train
from headway.core.events import CheckpointDone, RolloutEnded, RolloutParked, RunResumed
from headway.core.notes import Ignored
from headway.core.segments import Segment, group_of
from headway.queue.scheduler import Scheduler
from headway.runtime import retention
from tests.simulation.scenarios import play

SIZE = 2


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(retention, "SEGMENT_GROUPS", SIZE)


class Store:
    """Where each payload is, and what is gone, as `(life, whether an evaluation's, place)`."""

    def __init__(self):
        self.life = 0
        self.written = {}
        self.gone = set()

    def place(self, rollout):
        is_eval, number = group_of(rollout)
        return is_eval, number // SIZE

    def write(self, key, rollout):
        segment = (self.life, *self.place(rollout))
        assert segment not in self.gone, f"{rollout} is written to a segment that is gone"
        self.written[key] = segment

    def read(self, key):
        assert self.written[key] not in self.gone, f"{key} is read, and its segment is gone"

    def let_go(self, needs):
        for segment in set(self.written.values()):
            life, is_eval, place = segment
            if retention.is_settled(Segment("", f"environment0.{life}", "train", is_eval, place), needs):
                self.gone.add(segment)


def keeps_what_it_needs(settings, entries):
    """Walk through a journal; return how many segments went."""
    scheduler, store = Scheduler(settings), Store()
    for entry in entries:
        event = entry.event
        if isinstance(event, RunResumed):
            store.let_go(retention.needs_of(scheduler.state, contained=event.step))
            store.life = event.lineage
        commands, notes = scheduler.handle(event, entry.t)
        if isinstance(event, (RolloutEnded, RolloutParked)) and not any(
            isinstance(n, Ignored) for n in notes
        ):
            store.write((event.rollout, type(event)), event.rollout)
        for command in commands:
            match command:
                case Train():
                    for row in command.rows:
                        store.read((row.rollout, RolloutEnded))
                case Score():
                    store.read((command.rollout, RolloutEnded))
                case StartRollout(partial=partial) if partial:
                    store.read((command.rollout, RolloutParked))
                case _:
                    pass
        if isinstance(event, CheckpointDone):
            store.let_go(retention.needs_of(scheduler.state, writer_life=store.life))
    return len(store.gone)


@pytest.mark.parametrize("seed", range(80))
def test_whatever_happens_no_payload_that_went_is_asked_for(seed):
    run, _ = play(seed)
    keeps_what_it_needs(run.scheduler._base, run.entries)


def test_most_segments_of_a_run_go():
    going = [keeps_what_it_needs(run.scheduler._base, run.entries) for run, _ in map(play, range(8))]
    assert sum(going) > 40
