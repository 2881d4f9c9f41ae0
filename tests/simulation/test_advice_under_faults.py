"""Advice on runs with faults, kills, rollbacks, parking and every rule on: it stands, whatever happened."""

from __future__ import annotations

import json
import random

import pytest

from headway.core.codec import to_plain
from headway.core.events import StepEnded
from headway.core.notes import Ignored
from headway.matching.advice.reading import Reading
from headway.matching.advise import advice_of
from headway.matching.advise_text import advice_text, findings_of
from headway.telemetry.header import new_header
from headway.telemetry.records import Entry
from tests.simulation.scenarios import draw_settings, draw_sim, play_lives


def read(seed: int):
    rng = random.Random(f"advice/{seed}")
    kills = [rng.randint(50, 600) for _ in range(seed % 3)]
    settings = draw_settings(rng)
    run, _ = play_lives(settings, draw_sim(rng), seed, kills)
    reading = Reading(new_header(config={}, seed=0, queue=to_plain(settings)))
    for entry in run.entries:
        reading.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return reading, run.entries


@pytest.mark.parametrize("seed", range(24))
def test_advice_stands_whatever_happened(seed):
    reading, entries = read(seed)
    advice = advice_of(reading)
    json.dumps(advice.to_plain(), allow_nan=False)
    advice_text(advice, "drawn")
    assert [told.title for told in findings_of(advice).told] == [found.title for found in advice.findings]
    stakes = [finding.stake for finding in advice.findings]
    assert stakes == sorted(stakes, reverse=True)
    assert all(0.0 < stake <= 1.0 for stake in stakes)

    total, window_s = reading.phases.total, reading.metrics.window.seconds()
    assert sum(reading.phases.levels.values()) == pytest.approx(total.total_s)
    assert total.total_s <= window_s + 1e-6  # the window also holds a step that ends after the stop
    assert 0.0 <= total.at_limit_s + total.eval_s <= total.state_s["wait"] + 1e-6
    assert reading.phases.num_running >= 0
    survive = {record.step for record in reading.records}
    assert survive <= set(reading.phases.steps)
    steps = [e.event.step for e in entries if isinstance(e.event, StepEnded) and not _ignored(e)]
    assert set(reading.phases.steps) <= set(steps)


def _ignored(entry) -> bool:
    return any(isinstance(note, Ignored) and note.event == "StepEnded" for note in entry.notes)
