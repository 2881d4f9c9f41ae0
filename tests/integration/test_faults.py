"""Faults of an environment, a reward or a hook: each has a clear outcome, and costs nobody else anything."""

import shutil

import pytest

from headway.models.cache import MANIFEST
from tests.integration.conftest import LAST_DIGIT

NEVER = "await asyncio.Event().wait()"


def messages(bench, owner):
    return [note for note in bench.entries("AttemptFailed") if note["owner"] == owner]


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        ("raise ValueError('no such judge')", "exception", "ValueError: no such judge"),
        pytest.param("return Reward(float('nan'))", "not_finite", "nan", marks=pytest.mark.slow),
        pytest.param("await asyncio.sleep(600)", "timeout", "reward.timeout_s", marks=pytest.mark.slow),
    ],
    ids=["raises", "nan", "sleeps"],
)
def test_a_reward_that_fails_on_some_tasks_is_never_a_reward(bench, fault, cause, words):
    environment = bench.environment(score=f"if index % 3 == 0:\n    {fault}\n{LAST_DIGIT}")
    ended = bench.train(*environment, "reward.timeout_s=1")
    assert ended.code == 0, ended.text
    report = bench.check()
    assert report["steps"] == 3
    failed = report["conservation.by_fate"]["failed_reward"]
    assert failed >= 4
    assert report["rl.discard.failed_reward.rollouts"] == failed
    told = messages(bench, "reward")
    assert {note["cause"] for note in told} == {cause}
    assert all(words in note["message"] for note in told)
    scores = [event["reward"] for event in bench.entries("Scored")]
    assert set(scores) <= {0.0, 1.0}
    lost = {note["rollout"] for note in told}
    assert not lost & {rollout for rows in bench.trained().values() for rollout in rows}


def test_a_reward_that_always_fails_ends_the_run_by_name(bench):
    environment = bench.environment(score="raise ValueError('no such judge')")
    ended = bench.train(*environment, "queue.max_failed_groups=4")
    assert ended.code == 1, ended.text
    assert "4 groups in a row left no usable rollouts" in ended.out
    assert "ValueError: no such judge" in ended.out
    assert str(bench.run_dir) in ended.out
    report = bench.check()
    assert report["outcome"] == "failed"
    assert report["steps"] == 0


@pytest.mark.slow
def test_a_reward_that_always_fails_ends_the_run_in_its_first_evaluation(bench):
    environment = bench.environment(score="return 1.0")
    ended = bench.train(*environment, "queue.max_failed_groups=4", "eval.num_tasks=200", "reward.max_tries=1")
    assert ended.code == 1, ended.text
    assert "a reward function must return a Reward (got 'float')" in ended.out
    assert "nothing in it is finished" in ended.out
    assert "headway resume" not in ended.out
    bench.check()
    assert not bench.entries("EvalEnded")
    assert {note["cause"] for note in messages(bench, "reward")} == {"malformed"}
    fates = {note["fate"] for note in bench.entries("RolloutSettled")}
    assert "failed_reward" in fates


def test_one_rollout_in_three_fails_and_every_one_is_accounted_for(bench):
    fault = "if int.from_bytes(os.urandom(2), 'big') % 3 == 0:\n    raise OSError('out of cheese')"
    ended = bench.train(*bench.environment(rollout=fault), "queue.max_attempts=1", "stop.steps=6")
    assert ended.code == 0, ended.text
    report = bench.check()
    fates = report["conservation.by_fate"]
    assert fates["failed_environment"] > 0
    assert sum(fates.values()) == report["conservation.started"]
    assert fates["trained"] == sum(map(len, bench.trained().values()))
    assert all("OSError: out of cheese" in note["message"] for note in messages(bench, "environment"))


def test_an_environment_that_never_returns_costs_its_own_rollouts_only(bench):
    environment = bench.environment(rollout=f"if index % 4 == 1:\n    {NEVER}")
    ended = bench.train(*environment, "environment.rollout_timeout_s=2", "queue.max_attempts=1")
    assert ended.code == 0, ended.text
    report = bench.check()
    assert report["steps"] == 3
    assert report["conservation.by_fate"]["failed_environment"] >= 4
    warned = [note["text"] for note in bench.entries("Warned") if note["code"] == "rollout_timeout"]
    assert any(
        "no answer and no tool call ended for 2 s" in text and "task train/1 " in text for text in warned
    )
    assert "warning: rollout t000001" in ended.out


@pytest.mark.slow
def test_an_environment_that_never_returns_at_all_ends_the_run_by_name(bench):
    environment = bench.environment(rollout=NEVER)
    ended = bench.train(
        *environment, "environment.rollout_timeout_s=1", "queue.max_attempts=1", "queue.max_failed_groups=4"
    )
    assert ended.code == 1, ended.text
    assert "4 groups in a row left no usable rollouts" in ended.out
    assert "no answer within its deadline" in ended.out
    assert bench.check()["outcome"] == "failed"


@pytest.mark.slow
def test_an_environment_that_blocks_its_event_loop_is_named(bench):
    environment = bench.environment(rollout="time.sleep(600)")
    ended = bench.train(*environment, "run.lost_after_s=4", "recovery.environment_restarts=1")
    assert ended.code == 1, ended.text
    assert "environment worker environment0" in ended.err
    assert "said nothing for 4 s (run.lost_after_s)" in ended.err
    assert bench.check()["outcome"] == "failed"


def test_no_signal_is_a_bounded_and_named_outcome(bench):
    environment = bench.environment(score="return Reward(1.0)")
    ended = bench.train(*environment, "queue.drop_zero_advantage=true", "queue.max_empty_batches=2")
    assert ended.code == 0, ended.text
    assert "warning: " in ended.out
    assert "groups in a row were dropped (4 zero advantage)" in ended.out
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("no_signal", 0)
    assert report["conservation.by_fate"]["filtered"] >= 16


def test_an_advantage_function_that_raises_shows_its_error(bench):
    (bench.folder / "hooks.py").write_text(
        "def advantages(rewards, settings):\n    raise ArithmeticError('bad luck')\n"
    )
    ended = bench.train("algorithm.advantage=hooks:advantages")
    assert ended.code == 1, ended.text
    assert "raised ArithmeticError at " in ended.out
    assert str(bench.run_dir) in ended.out
    assert bench.check()["outcome"] == "failed"


@pytest.mark.slow
def test_a_loss_that_raises_in_the_trainer_shows_its_traceback(bench):
    (bench.folder / "hooks.py").write_text(
        "def loss(*args, **kwargs):\n    raise ArithmeticError('bad luck')\n"
    )
    ended = bench.train("algorithm.loss=hooks:loss")
    assert ended.code == 1, ended.text
    assert "ArithmeticError: bad luck" in ended.err
    assert "hooks.py" in ended.err
    assert bench.check()["outcome"] == "failed"


def loss_of(bench, body):
    (bench.folder / "hooks.py").write_text(
        "import torch\n\n\ndef loss(logp, behaviour_logp, advantages, settings):\n"
        f"    clipped = torch.zeros_like(logp, dtype=torch.bool)\n    return {body}, clipped\n"
    )
    return "algorithm.loss=hooks:loss"


def test_a_loss_s_mistake_is_bad_input_and_starts_nothing_anew(bench):
    ended = bench.train(loss_of(bench, "(-logp * advantages).mean()"))
    said = ended.refused()
    assert said.startswith(
        "error: command line: algorithm.loss: loss hooks:loss must return per_token as a tensor"
    )
    assert "\n" not in said
    assert "anew" not in ended.out
    assert bench.check()["outcome"] == "failed"
    assert bench.entries("RestartWorker") == []


@pytest.mark.slow  # the scheduler's tests have it without processes
def test_a_run_that_skipped_its_every_step_has_failed(bench):
    ended = bench.train(loss_of(bench, "logp * float('nan')"), "stop.steps=2", "queue.max_failed_groups=9")
    assert ended.code == 1, ended.text
    assert "step 1 left the weights as they were: loss and grad_norm were not finite" in ended.out
    assert "error: nothing was trained: each of the 2 steps was skipped, at step 2 because loss" in ended.out
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("failed", 2)


def test_a_run_whose_first_steps_are_all_skipped_ends_early(bench):
    ended = bench.train(loss_of(bench, "logp * float('nan')"), "stop.steps=9")
    assert "4 steps in a row were not, the last 4 (got (nan, nan))" in ended.refused()
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("failed", 3)
    assert bench.entries("RestartWorker") == []


def test_a_loss_that_is_not_there_is_bad_input(bench):
    said = bench.train("algorithm.loss=nowhere:loss").refused()
    assert "algorithm.loss" in said
    assert "No module named 'nowhere'" in said


def test_an_environment_that_cannot_be_built_is_named_with_its_line(bench):
    environment = bench.environment()
    file = bench.folder / "mine.py"
    file.write_text(file.read_text().replace("        pass\n", "        raise KeyError('the licence')\n"))
    ended = bench.train(*environment)
    assert ended.code == 2, ended.text
    assert "must not fail while being built: KeyError: 'the licence', raised at " in ended.err
    assert f"{file}:" in ended.err
    assert "nothing in it is finished" in ended.out
    bench.check()


def test_weights_that_are_not_numbers_are_named(bench, tiny_model):
    model = shutil.copytree(tiny_model, bench.folder / "model")
    (model / MANIFEST).unlink()
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    weights.write_bytes(data[:header] + b"\xff" * (len(data) - header))
    ended = bench.train(f"model.path={model}")
    assert ended.code == 1, ended.text
    assert "version 0.0 computed values that are not finite" in ended.out
    assert bench.check()["steps"] == 0


GONE = {
    # Each start is refused for good, as by a service whose token was revoked.
    "create": (
        """
async def create(self, sandbox_id, labels):
    raise SandboxUnavailableError("the token is taken no more", remedy="Run `service token new`")
if index >= 12:
    BubblewrapProvider.create = create""",
        "the token is taken no more",
    ),
    # Sandboxes still come to be, and no command runs in any.
    "program": (
        """
layout = BubblewrapProvider.layout
def gone(self):
    return replace(layout(self), bwrap=Bwrap("/nowhere/bwrap", ()))
if index >= 12:
    BubblewrapProvider.layout = gone""",
        "the sandbox did not start",
    ),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] if what == "program" else []) for what in GONE]
)
def test_a_provider_that_is_gone_for_good_in_mid_run_ends_it_by_name(bench, what):
    gone, words = GONE[what]
    environment = bench.environment(
        needs_sandbox=True,
        rollout=f"""
from dataclasses import replace
from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.layout import Bwrap
{gone.strip()}
try:
    assert (await sandbox.exec(["echo", "hi"])).stdout == "hi\\n"
except SandboxError:
    pass  # an environment that goes on all the same makes no reward of it""",
    )
    ended = bench.train(*environment, "queue.max_failed_groups=4", "stop.steps=50")
    assert ended.code == 1, ended.text
    assert "4 groups in a row left no usable rollouts" in ended.out
    assert words in ended.out, ended.text
    assert what != "create" or "Run `service token new`" in ended.out, ended.text
    assert "Traceback" not in ended.err, ended.text
    report = bench.check()
    assert report["outcome"] == "failed"
    assert report["steps"] >= 1  # those before it are in the weights
    told = messages(bench, "infrastructure")
    assert any(words in note["message"] for note in told)
    scored = {event["rollout"] for event in bench.entries("Scored")}
    assert not {note["rollout"] for note in told} & scored
