"""What findings propose: only what can do something in the run and on its machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.events import Event, TaskOffered, TurnEnded
from headway.matching.advice.reading import Reading
from headway.matching.advise import advice_of
from headway.telemetry.journal import read_journal
from headway.telemetry.machine import cores_of
from tests.simulation.journals import simulated_journal
from tests.simulation.test_advice import BASE, CALM


def found(path, code, *overrides, machine=None, change=None, **sim):
    simulated_journal(path, *BASE, *overrides, sim=replace(CALM, **sim), change=change)
    journal = read_journal(path)
    if machine is not None:
        journal.header = replace(journal.header, machine=machine)
    findings = advice_of(Reading.of(journal)).findings
    return next(finding for finding in findings if finding.code == code)


def few(event: Event) -> Event:
    """Of a source with four tasks."""
    if isinstance(event, TaskOffered):
        return replace(event, task_id=f"train/{event.request % 4}", num_tasks=4)
    return event


def test_tasks_that_never_come_again_are_not_told_to_rest(tmp_path):
    finding = found(tmp_path, "tasks_too_easy", "environment.args.levels=[1, 2]", solve_rate=0.98)
    assert finding.change.settings == {}
    assert "environment.args (levels = [1, 2] now)" in finding.change.text


def test_tasks_that_come_again_are_told_to_rest(tmp_path):
    finding = found(tmp_path, "tasks_too_easy", solve_rate=0.98, change=few)
    assert finding.change.settings == {"curriculum.retire_after": "2"}
    assert finding.change.text.startswith("add harder tasks")


@pytest.mark.parametrize(
    ("machine", "cores"),
    [("Xeon, 2 cores, x86_64", 2), ("EPYC 7763, 8 of 64 cores, x86_64", 8), ("1 core, arm64", 1), ("", None)],
)
def test_cores_are_read_from_the_machine_in_words(machine, cores):
    assert cores_of(machine) == cores


def late(event: Event) -> Event:
    """Rollouts whose engine took no time: all of it lies between processes."""
    if isinstance(event, TurnEnded):
        return replace(event, waiting_s=0.0, prefill_s=0.0, decode_s=0.0)
    return event


@pytest.mark.parametrize(
    ("machine", "workers", "settings"),
    [
        ("Xeon, 2 cores, x86_64", 1, {}),  # driver, trainer and generator have them
        ("Xeon, 4 cores, x86_64", 1, {}),
        ("Xeon, 5 cores, x86_64", 1, {"environment.workers": "2"}),
        ("Xeon, 7 cores, x86_64", 3, {"environment.workers": "4"}),  # a core for each, and no more
        ("", 1, {}),
    ],
)
def test_environment_workers_are_proposed_where_a_core_is_idle(tmp_path, machine, workers, settings):
    finding = found(
        tmp_path,
        "generation_handover",
        f"environment.workers={workers}",
        machine=machine,
        change=late,
        train_s=0.5,
    )
    assert finding.change.settings == settings
    assert (finding.gain.high is None) == (not settings)


def test_free_slots_are_not_told_as_decoding_that_holds_up(tmp_path):
    finding = found(tmp_path, "generation_decode", "queue.bound=1", max_running=256, train_s=0.5)
    assert finding.title == "Each answer takes long, while slots are free"
    assert finding.gain.high < 0.12  # for a tenth off decoding


def test_depth_gains_no_more_than_the_wait_that_it_causes(tmp_path):
    finding = found(tmp_path, "staleness_limit", "queue.bound=1", max_running=256, train_s=0.5)
    limited = finding.evidence[0].value
    starved = finding.stake / limited
    assert finding.gain.high <= 1.0 / (1.0 - starved * limited) - 1.0 + 1e-9
