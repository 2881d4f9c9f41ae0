"""Findings about simulated runs: each where its cause was planted, none where a run is calm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.events import ReplicaChanged, StepEnded, TurnEnded
from headway.matching.advice.finding import Gain
from headway.matching.advice.reading import Reading
from headway.matching.advise import advice_of, advise
from headway.matching.advise_text import advice_text, short_lines
from headway.matching.roles import SimSettings
from headway.telemetry.journal import read_journal
from tests.simulation.journals import simulated_journal

BASE = ("stop.steps=16", "eval.num_tasks=0", "queue.batch_size=32", "queue.group_size=8", "queue.bound=2")
# 64 slots make a batch in about the time that the trainer needs for one.
CALM = SimSettings(
    max_running=64,
    num_turns=1,
    uses_sandbox=False,
    tokens_sigma=0.15,
    token_s=0.05,
    prefill_s=0.02,
    score_s=0.02,
    solve_rate=0.5,
    train_s=2.4,
    publish_s=0.05,
    apply_s=0.02,
)


def read(path, *overrides, change=None, **sim) -> Reading:
    simulated_journal(path, *BASE, *overrides, sim=replace(CALM, **sim), change=change)
    return Reading.of(read_journal(path))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Return the reading of a planted run, each simulated once."""
    known = {}

    def of(code: str) -> Reading:
        if code not in known:
            overrides, sim = PLANTED[code]
            known[code] = read(tmp_path_factory.mktemp(code), *overrides, **sim)
        return known[code]

    return of


def codes(reading: Reading) -> list[str]:
    return [finding.code for finding in advice_of(reading).findings]


SANDBOX = {"uses_sandbox": True, "num_turns": 2, "tokens_sigma": 0.1, "token_s": 0.005, "train_s": 0.5}
ROOMY = ("sandbox.max_live=400", "sandbox.max_starting=400")
LONG = {"tokens_sigma": 1.5, "max_answer_tokens": 2000, "train_s": 1.0}
PLANTED = {
    "synchronous": (("queue.bound=0",), {}),
    "serial": (("queue.depth=0",), {}),
    "stragglers": (("queue.bound=1",), LONG),
    "stale_discards": (("queue.bound=1",), LONG),
    "staleness_limit": (("queue.bound=1",), {"max_running": 256, "train_s": 0.5}),
    "generation_decode": ((), {"train_s": 0.5}),
    "generation_prefill": ((), {"train_s": 0.5, "prefill_s": 3.0}),
    "generation_slots": ((), {"train_s": 0.5, "max_running": 8}),
    "generation_kv": ((), {"train_s": 0.5, "kv_tokens": 600}),
    "generation_tools": (ROOMY, SANDBOX | {"tool_s": 6.0}),
    "generation_sandbox_starts": (ROOMY, SANDBOX | {"sandbox_start_s": 6.0}),
    "generation_sandbox_quota": (("sandbox.max_live=4",), SANDBOX | {"tool_s": 2.0}),
    "generation_scoring": ((), {"train_s": 0.5, "score_s": 6.0}),
    "training_bound": ((), {"train_s": 9.0}),
    "weight_transfer": ((), {"publish_s": 2.0}),
    "updates_too_often": (("queue.depth=2",), {"apply_s": 2.0, "train_s": 1.0}),
    "tasks_too_easy": ((), {"solve_rate": 0.98}),
    "tasks_too_hard": ((), {"solve_rate": 0.01}),
    "oversampling": (("oversampling.rollouts_extra=8",), {"max_running": 16}),
}


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_cause_is_found(planted, code):
    found = {finding.code: finding for finding in advice_of(planted(code)).findings}
    assert code in found
    finding = found[code]
    assert finding.evidence
    assert finding.change.text
    assert 0.0 < finding.stake <= 1.0


@pytest.mark.parametrize(
    ("overrides", "sim"),
    [
        ((), {}),
        (("queue.bound=3",), {"tokens_sigma": 0.4, "train_s": 2.5}),
        (ROOMY, {"uses_sandbox": True, "num_turns": 2, "token_s": 0.024, "tool_s": 0.05}),
        (("queue.group_size=4",), {"train_s": 2.7}),
    ],
    ids=["plain", "spread", "tools", "small-groups"],
)
def test_a_calm_run_is_told_nothing(tmp_path, overrides, sim):
    assert codes(read(tmp_path, *overrides, **sim)) == []


@pytest.mark.parametrize("code", PLANTED)
def test_only_what_follows_from_the_planted_cause_is_told_beside_it(planted, code):
    found = set(codes(planted(code)))
    assert found <= {code, "generation_decode"} | BESIDE.get(code, set())


LIMIT = {"staleness_limit"}  # what takes long comes to it
BESIDE = {
    "stragglers": {"staleness_limit", "stale_discards"},
    "stale_discards": {"staleness_limit", "stragglers"},
    "generation_tools": LIMIT,
    "generation_sandbox_starts": LIMIT,
    "generation_scoring": LIMIT,
    "weight_transfer": {"training_bound"},
    "oversampling": {"generation_slots"},
}


def test_a_slow_engine_is_named(tmp_path):
    def slower(event):
        slow = isinstance(event, TurnEnded) and event.replica == "g2"
        return replace(event, decode_s=1.5 * event.decode_s) if slow else event

    three = ("generator.replicas=3",)
    sim = {"max_running": 16, "train_s": 1.0}
    slow = advice_of(read(tmp_path, *three, change=slower, **sim))
    finding = next(finding for finding in slow.findings if finding.code == "slow_engine")
    assert finding.title == "Replica g2 is slower than the others"
    assert finding.evidence[0].value == pytest.approx(1.5, abs=0.05)


def test_engines_alike_are_told_nothing(tmp_path):
    assert "slow_engine" not in codes(read(tmp_path, "generator.replicas=3", max_running=16, train_s=1.0))


def test_preemptions_are_told(tmp_path):
    told = [0]

    def preempts(event):
        if not isinstance(event, ReplicaChanged):
            return event
        told[0] += 5
        return replace(event, num_preemptions=told[0])

    found = codes(read(tmp_path, change=preempts, kv_tokens=4000, train_s=1.0))
    assert "preemptions" in found


def test_loading_is_told(tmp_path):
    def shorter(event):
        return replace(event, compute_s=1.0) if isinstance(event, StepEnded) else event

    assert "data_loading" in codes(read(tmp_path, change=shorter))


def test_drift_that_will_turn_the_bottleneck_is_told_with_the_step(tmp_path):
    """Computing grows by 4 % a step, and passes what a batch takes to make within the run."""

    def grows(event):
        if not isinstance(event, StepEnded):
            return event
        return replace(event, compute_s=0.9 * 1.04**event.step)

    reading = read(tmp_path, "stop.steps=60", change=grows, train_s=4.0)
    found = [finding for finding in advice_of(reading).findings if finding.code == "drift"]
    assert len(found) == 1
    assert "to the trainer" in found[0].title
    step = found[0].evidence[0].value
    made, used = (sum(side) / 60 for side in _sides(reading))
    assert used > made
    assert 5 < step < 55


def _sides(reading):
    from headway.matching.advice.drift import sides

    _, made, used = sides(reading)
    return made, used


@pytest.mark.parametrize("code", ["synchronous", "serial", "staleness_limit", "generation_sandbox_quota"])
def test_the_gain_that_is_told_is_what_the_change_brings_in_the_simulation(tmp_path, planted, code):
    overrides, sim = PLANTED[code]
    before = planted(code)
    finding = next(finding for finding in advice_of(before).findings if finding.code == code)
    changed = [f"{key}={value}" for key, value in finding.change.settings.items()]
    after = read(tmp_path, *overrides, *changed, **sim)
    key = "rl.consumption.wall_samples_per_s"
    gain = after.summary[key] / before.summary[key] - 1.0
    assert (finding.gain.low or 0.1) < gain < 1.25 * finding.gain.high


def test_a_simulation_takes_the_place_of_the_closed_form(tmp_path):
    asked = []

    def whatif(changes):
        asked.append(dict(changes))
        return Gain(0.3, 0.2, "re-simulated", "3 seeds")

    simulated_journal(tmp_path, *BASE, "queue.bound=0", sim=CALM)
    found = advise(read_journal(tmp_path), whatif)
    assert {"queue.bound": "1"} in asked
    told = next(finding for finding in found if finding.code == "synchronous")
    assert told.gain == Gain(0.3, 0.2, "re-simulated", "3 seeds")


def test_advice_says_what_to_change_and_names_the_field(tmp_path):
    advice = advice_of(read(tmp_path, "queue.bound=0"))
    text = advice_text(advice, "toy")
    assert "queue.bound=1" in text
    assert "the field: 30% to 74%" in text
    assert max(map(len, text.splitlines())) <= 110
    lines = short_lines(advice, "runs/toy")
    assert lines[0].startswith("advice: Synchronous")
    assert "queue.bound=1" in lines[0]
    assert "headway advise runs/toy" in lines[-1]


def test_a_calm_run_ends_without_a_word(tmp_path):
    advice = advice_of(read(tmp_path))
    assert short_lines(advice, "runs/toy") == []
    assert "Nothing stands out" in advice_text(advice, "toy")


def test_a_run_without_a_step_is_told_nothing(tmp_path):
    simulated_journal(tmp_path, *BASE, sim=CALM, num_entries=20)
    advice = advice_of(Reading.of(read_journal(tmp_path)))
    assert advice.bottleneck == "unknown"
    assert advice.findings == ()
    assert "too short" in advice_text(advice, "toy")
