"""Findings about simulated runs: each where its cause was planted, none where a run is calm."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from headway.core.events import ReplicaChanged, StepEnded, TurnEnded
from headway.matching.advice.drift import crossing, sides
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
    path.mkdir(exist_ok=True)
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
    "generation_prefill": {"generation_slots", "updates_too_often"},  # contexts are computed anew
    "updates_too_often": {"generation_prefill"},
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


def grows(event):
    """Let computing grow by 4 % a step."""
    return replace(event, compute_s=0.9 * 1.04**event.step) if isinstance(event, StepEnded) else event


@pytest.mark.parametrize(("until", "word"), [(60, "turned"), (16, "will turn")])
def test_drift_that_turns_the_bottleneck_is_told_with_the_step(tmp_path, until, word):
    """Before it happened, from a third of the run, and after it."""
    (tmp_path / "whole").mkdir()
    whole = read(tmp_path / "whole", "stop.steps=60", change=grows, train_s=4.0)
    steps, made, used = sides(whole)
    truth = next(step for step, m, u in zip(steps, made, used, strict=True) if u > median(made))
    ends = [entry.seq for entry in read_journal(tmp_path / "whole").entries() if _ended(entry, until)]
    simulated_journal(
        tmp_path,
        *BASE,
        "stop.steps=60",
        sim=replace(CALM, train_s=4.0),
        change=grows,
        num_entries=ends[0] + 1 if until < 60 else None,
    )
    found = [f for f in advise(read_journal(tmp_path)) if f.code == "drift"]
    assert len(found) == 1
    assert f"{word} to the trainer" in found[0].title
    assert found[0].evidence[0].value == pytest.approx(truth, abs=4 if until == 60 else 8)


def _ended(entry, step: int) -> bool:
    return isinstance(entry.event, StepEnded) and entry.event.step == step


def test_a_crossing_has_fiellers_interval():
    """Points on y = (x - 4) / 2 with residuals -.1 .1 .1 -.1: slope .5, s^2 = .02, Sxx = 5, t(2) = 4.3027."""
    found = crossing([0.0, 1.0, 2.0, 3.0], [-2.1, -1.4, -0.9, -0.6])
    assert found is not None
    assert (found.slope, found.at) == pytest.approx((0.5, 4.0))
    q = 4.302652729911275**2 * 0.02
    for end in (found.low, found.high):  # where the line's height is as far from 0 as its own error
        assert (0.5 * (end - 4.0)) ** 2 == pytest.approx(q * (1 / 4 + (end - 1.5) ** 2 / 5))


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
    assert "takes 10 steps" in advice_text(advice, "toy")


def test_a_run_of_a_few_steps_is_told_that_advice_takes_more(tmp_path):
    """Its first steps fill it up: here a calm run's trainer would be said to wait for generation."""
    few, more = (read(tmp_path / str(steps), f"stop.steps={steps}") for steps in (9, 10))
    told = short_lines(advice_of(few), "runs/toy")
    assert told == ["advice takes 10 steps; this run has fewer, and the first ones fill it up"]
    assert short_lines(advice_of(more), "runs/toy") == []
