"""A recorded run simulated again: unchanged it does what it did, changed it does what such a run does."""

import json
import random
from statistics import fmean

import pytest

from headway.core.errors import ConfigError, UserError
from headway.matching.recorded import RecordedPlan, RecordedWorkload, Scales
from headway.matching.recording import record
from headway.matching.spec import WorkloadSettings
from headway.matching.whatif import METRICS, Replay, value_of, whatif
from headway.matching.whatif_changes import change
from headway.matching.whatif_text import whatif_json, whatif_text
from headway.telemetry.metrics import RunMetrics
from tests.simulation.modelled_runs import MemoryJournal, modelled_run

TRUTH = WorkloadSettings(
    prompt_tokens=100, turns=3.0, answer_tokens=60, answer_sigma=0.5, rollout_sigma=0.3, 
    observation_tokens=20, tool_s=4.0, tool_sigma=0.9, score_s=0.3, solve_alpha=2.0, solve_beta=3.0,
)  # fmt: skip
SIZE = (
    "generator.max_context_tokens=4096", "generator.max_answer_tokens=2048", "generator.max_running=64",
    "queue.batch_size=32", "queue.bound=2",
)  # fmt: skip


def run(*overrides, truth=TRUTH, seed=1, steps=30):
    return modelled_run(truth, *SIZE, *overrides, seed=seed, steps=steps)


def summary(journal):
    metrics = RunMetrics(journal.header)
    for entry in journal:
        metrics.feed(entry)
    return metrics.summary()


@pytest.fixture(scope="module")
def journal():
    return run()


@pytest.fixture(scope="module")
def replay(journal):
    return Replay(journal)


@pytest.fixture(scope="module")
def deeper(replay):
    return replay.whatif(["queue.bound=4"], seeds=3)


def test_the_unchanged_run_does_what_it_did(deeper):
    """The recorded lengths, the fitted engine and trainer: within 4 %, staleness within a tenth of a step."""
    for key in METRICS:
        one = deeper.of(key)
        if "staleness" in key:
            assert one.replayed == pytest.approx(one.measured, abs=0.1), key
        elif "fraction" in key:
            assert one.replayed == pytest.approx(one.measured, abs=0.02), key
        elif "depth" not in key:
            assert one.replayed == pytest.approx(one.measured, rel=0.04), key


def test_no_change_makes_no_difference(replay):
    found = replay.whatif(["queue.bound=2"], seeds=3)
    for one in found.compared:
        assert (one.difference, one.low, one.high) == (0.0, 0.0, 0.0)
        assert one.before == one.after


def test_the_measured_run_is_inside_what_the_seeds_make_of_it(replay):
    """Each seed deals the groups anew; the run itself is one such deal."""
    found = replay.whatif(["queue.bound=2"], seeds=3)
    for key, within in (("rl.consumption.wall_samples_per_s", 0.08), ("rl.production.samples_per_s", 0.06)):
        one = found.of(key)
        assert one.before == pytest.approx(one.measured, rel=within)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        (["queue.bound=4"], 30),
        pytest.param(["queue.bound=0"], 30, marks=pytest.mark.slow),
        (["queue.batch_size=64", "queue.group_size=4"], 15),
        pytest.param(["generator.max_running=8"], 30, marks=pytest.mark.slow),
    ],
)
def test_a_changed_run_is_predicted(replay, changes, steps):
    """Against simulations of the true workload with the setting changed; one run's rate is within 6 %."""
    found = replay.whatif(changes, seeds=3)
    true = [summary(run(*changes, seed=seed, steps=steps)) for seed in (2, 3, 4)]
    for key, within in (
        ("rl.consumption.wall_samples_per_s", {"rel": 0.1}),
        ("rl.staleness.token.mean", {"abs": 0.3}),
        ("rl.trainer.wait_fraction", {"abs": 0.05}),
    ):
        mean = fmean(value_of(one, key) for one in true)
        assert found.of(key).after == pytest.approx(mean, **within), key


def test_what_control_would_do_is_predicted_and_what_it_did_is_done_again():
    """A setting that the question names is out of the controller's hands."""
    key = "rl.consumption.wall_samples_per_s"
    slow = WorkloadSettings(**{name: getattr(TRUTH, name) for name in TRUTH.__slots__} | {"tool_sigma": 1.5})
    fixed, controlled = (Replay(run(f"control.mode={mode}", truth=slow)) for mode in ("off", "on"))
    gains = fixed.whatif(["control.mode=on"], seeds=2).of(key)
    assert gains.after > 1.15 * gains.before
    true = value_of(summary(run("control.mode=on", truth=slow, seed=2)), key)
    assert gains.after == pytest.approx(true, rel=0.12)

    again = controlled.whatif(["queue.bound=2"], seeds=2).of(key)
    assert again.replayed == pytest.approx(again.measured, rel=0.12)
    assert change(controlled.calibration, ["control.mode=off"]).control is None
    pinned = change(controlled.calibration, ["oversampling.rollouts_extra=0"]).control
    assert pinned is not None
    assert "rollouts_extra" not in pinned.levers
    assert "depth" in pinned.levers


def test_slower_tools_are_predicted_by_scaling_what_was_recorded(replay):
    fitted = replay.calibration.workload.tool_s
    found = replay.whatif([f"workload.tool_s={2 * fitted}"], seeds=3)
    slower = WorkloadSettings(**{name: getattr(TRUTH, name) for name in TRUTH.__slots__} | {"tool_s": 8.0})
    key = "rl.consumption.wall_samples_per_s"
    mean = fmean(value_of(summary(run(truth=slower, seed=seed)), key) for seed in (2, 3, 4))
    assert found.of(key).after == pytest.approx(mean, rel=0.1)


def test_the_difference_has_an_interval_that_holds_its_mean(deeper):
    one = deeper.of("rl.production.samples_per_s")
    assert one.low < one.difference < one.high
    assert one.low > 0  # more depth produces more


def test_what_never_ran_is_drawn_and_counted(replay):
    assert replay.whatif(["queue.bound=2"], seeds=1).drawn < 0.02
    assert replay.whatif(["queue.group_size=16"], seeds=1).drawn == pytest.approx(0.5, abs=0.1)


def test_a_recorded_rollout_does_what_it_did(journal, replay):
    recording = record(journal)
    workload = RecordedWorkload(recording, replay.calibration.workload)
    done = next(one for one in recording.attempts if one.outcome == "ended" and one.reward is not None)
    first = next(one for one in recording.attempts if one.group == done.group)
    plan = workload.plan(random.Random(0), first.task_id, done.rollout, 0, 0, "train")
    assert isinstance(plan, RecordedPlan)
    assert [turn.answer_tokens for turn in plan.turns] == [turn.num_tokens for turn in done.turns]
    assert [turn.tool_s for turn in plan.turns[:-1]] == [turn.after_s for turn in done.turns[:-1]]
    assert (plan.reward, plan.score_s, plan.prompt_tokens) == (done.reward, done.score_s, 100)
    assert (workload.num_recorded, workload.num_drawn) == (1, 0)


def test_a_rollout_that_was_cut_off_goes_on(journal, replay):
    recording = record(journal)
    cut = next(one for one in recording.attempts if one.outcome == "stopped" and one.turns)
    workload = RecordedWorkload(recording, replay.calibration.workload)
    plan = workload.plan(random.Random(0), cut.task_id, cut.rollout, 0, 0, "train")
    begun = cut.num_tokens - cut.num_answered
    assert [turn.answer_tokens for turn in plan.turns[: len(cut.turns)]] == [t.num_tokens for t in cut.turns]
    if begun:
        assert plan.turns[len(cut.turns)].answer_tokens > begun
    else:
        assert plan.turns[len(cut.turns) - 1].tool_s >= cut.turns[-1].after_s
    assert (workload.num_recorded, workload.num_extended, workload.num_drawn) == (0, 1, 0)


def test_lower_limits_cut_recorded_answers(journal, replay):
    recording = record(journal)
    scales = Scales(max_answer_tokens=10)
    workload = RecordedWorkload(recording, replay.calibration.workload, scales=scales)
    done = next(one for one in recording.attempts if one.outcome == "ended")
    plan = workload.plan(random.Random(0), done.task_id, done.rollout, 0, 0, "train")
    assert max(turn.answer_tokens for turn in plan.turns) == 10
    assert plan.truncated


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            "trainer.learning_rate=0.1",
            "cannot be predicted: it changes what the policy learns or what a step",
        ),
        ("algorithm.loss=cispo", "cannot be predicted: it changes what the policy learns"),
        ("model.path=other", "cannot be predicted: another model answers otherwise"),
        ("environment.args.levels=[3]", "cannot be predicted: rollouts are replayed as they were recorded"),
        ("stop.steps=3", "cannot be predicted: the prediction is over as much of the run as was recorded"),
        ("pruning.max_tokens=10", "cannot be predicted: what a watch would have said"),
        ("telemetry.view=lines", "cannot be predicted: its effect on rates is not modelled"),
        ("workload.turns=3", "cannot be predicted: rollouts are replayed as they were recorded"),
        ("queue.bond=3", "is not a setting"),
        ("timings.decode_base=3", "is not a setting"),
        ("queue.bound=many", "must be an integer"),
        ("workload.tool_s=-1", "must be at least 0"),
        ("generator.max_answer_tokens=4000", "may not be raised above the run's 2048"),
        ("queue.batch_size=33", "batch_size must be a multiple of group_size"),
        ("nonsense", "an override must have the form key=value"),
    ],
)
def test_settings_that_it_cannot_predict_are_refused(replay, change, rule):
    with pytest.raises(ConfigError) as raised:
        replay.whatif([change], seeds=1)
    (problem,) = raised.value.problems
    assert problem.rule.startswith(rule)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("queue.bond", "queue.bound"),
        ("queue.max_running", "queue.max_running_rollouts"),
        ("trainer.max_answer_tokens", "generator.max_answer_tokens"),  # a key of another section
    ],
)
def test_what_an_unknown_key_was_meant_to_be(replay, key, meant):
    with pytest.raises(ConfigError) as raised:
        replay.whatif([f"{key}=3"], seeds=1)
    (problem,) = raised.value.problems
    assert problem.remedy == f"Did you mean {meant}?"


def test_all_problems_are_told_together(replay):
    with pytest.raises(ConfigError) as raised:
        replay.whatif(["model.path=x", "queue.bound=-1", "fleet.start_s=-1"], seeds=1)
    assert [problem.key for problem in raised.value.problems] == [
        "model.path",
        "fleet.start_s",
        "queue.bound",
    ]


def test_a_run_that_is_too_short_is_refused(journal):
    with pytest.raises(UserError, match="the run must be long enough to be simulated again"):
        whatif(MemoryJournal(journal.header, journal.entries[:100]), ["queue.bound=1"])


def test_text_and_json_say_what_it_does_not_predict(deeper):
    text = whatif_text(deeper, "runs/x")
    assert text.startswith("runs/x with queue.bound=4, 3 seeds\n")
    assert "never learning" in text
    plain = json.loads(json.dumps(whatif_json(deeper)))
    assert plain["predicts"] == "rates and staleness, never learning"
    assert set(plain["metrics"]) == set(METRICS)
    one = plain["metrics"]["rl.production.samples_per_s"]
    assert one["low"] < one["difference"] < one["high"]


def test_the_same_journal_and_seeds_give_the_same_prediction(journal, deeper):
    assert whatif_json(whatif(journal, ["queue.bound=4"], seeds=3)) == whatif_json(deeper)


def test_values_that_the_run_has_already_are_refused(journal):
    with pytest.raises(UserError, match=r"has these values already.*queue\.bound=2"):
        whatif(journal, ["queue.bound=2"], seeds=3)


def test_two_seeds_have_no_interval_and_one_is_no_plural(replay):
    two, one = (replay.whatif(["queue.bound=4"], seeds=seeds) for seeds in (2, 1))
    assert all(compared.low is None for compared in two.compared)
    assert "No intervals: they take 3 seeds" in whatif_text(two, "runs/x")
    assert whatif_text(one, "runs/x").startswith("runs/x with queue.bound=4, 1 seed\n")


def test_progress_names_each_seed(replay):
    said = []
    replay.whatif(["queue.bound=4"], 2, said.append)
    assert [line.partition(",")[0] for line in said] == [
        "simulating the run with seed 1 of 2",
        "simulating the run with seed 2 of 2",
    ]
