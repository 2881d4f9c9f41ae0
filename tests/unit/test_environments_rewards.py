"""What the host makes of rubrics, judges and shaping: whose fault a failure is, and whose time a wait."""

import asyncio

import pytest
from tokenizers import Tokenizer

from headway.core.events import RolloutEnded, Scored, ScoreFailed
from headway.core.protocols import Outcome
from headway.core.records import Message, Reward
from headway.environments.host import RolloutHost
from headway.rewards.judge import Judge
from headway.rewards.rubric import Part, Rubric
from headway.rewards.settings import JudgeSettings, RewardSettings, ShapingSettings
from headway.rewards.stage import RewardStage
from headway.rewards.waiting import outside
from tests.standins.judge import Answer, served
from tests.unit.host_stage import TASK, opened
from tests.unit.rollout_parts import ScriptedEngine


async def hello(chat, sandbox):
    await chat.say([Message("user", "hi")])
    return Outcome({"kept": 1})


@pytest.fixture
def engines(model_dir, renderer):
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = tokenizer.encode("ok<|im_end|>", add_special_tokens=False).ids
    engine = ScriptedEngine(decode=renderer.decode)
    engine._script = lambda request: ids
    return {"replica-0": engine}


@pytest.fixture
def stage(tmp_path, engines, renderer):
    return lambda score, **settings: opened(tmp_path, engines, renderer, hello, score, **settings)


async def test_score_sees_the_transcript(stage):
    seen = []

    async def score(outcome, sandbox):
        seen.append(outcome)
        return Reward(1.0)

    async with stage(score) as s:
        assert isinstance(await s.run_and_score(), Scored)
    (outcome,) = seen
    assert outcome.data == {"kept": 1}
    assert [(each["role"], each["content"]) for each in outcome.transcript] == [
        ("user", "hi"),
        ("assistant", "ok"),
    ]
    assert outcome.transcript[1]["finish"] == "stop"
    assert (
        outcome.transcript[1]["num_tokens"]
        == s.payload((await s.until(RolloutEnded)).payload).samples[0].num_trainable
    )


def parts(*functions, **options):
    rubric = Rubric(*(Part(function, **options) for function in functions))
    return lambda outcome, sandbox: rubric.score(TASK, outcome, sandbox)


async def test_a_part_that_raises_is_named_in_the_failure(stage):
    async with stage(parts(lambda data: data["gone"], name="lookup")) as s:
        failed = await s.run_and_score()
    assert isinstance(failed, ScoreFailed)
    assert failed.cause == "exception"
    assert "reward lookup raised KeyError: 'gone'" in failed.message


async def test_a_part_that_takes_too_long_is_a_timeout(stage):
    async def slow():
        await asyncio.Event().wait()

    async with stage(parts(slow, timeout_s=0.05)) as s:
        failed = await s.run_and_score()
    assert (failed.cause, "reward slow must end within 0.05 s" in failed.message) == ("timeout", True)


async def test_a_judge_that_fails_is_infrastructure_and_no_reward(stage):
    with served(Answer(500, b"")) as server:
        judge = Judge(JudgeSettings(url=server.url, model="m", max_tries=1))
        async with stage(parts(judge)) as s:
            failed = await s.run_and_score()
        await judge.close()
    assert isinstance(failed, ScoreFailed)
    assert failed.cause == "judge"


async def test_a_judge_that_is_asked_when_the_time_is_over_is_to_blame(stage):
    with served(Answer(delay_s=60)) as server:
        judge = Judge(JudgeSettings(url=server.url, model="m"))
        async with stage(parts(judge), score_timeout_s=0.2) as s:
            failed = await s.run_and_score()
        await judge.close()
    assert failed.cause == "judge_away"
    assert f"it waited for the judge at {server.url} (try 1 of 4)" in failed.message


async def test_waiting_for_a_rate_limit_is_no_part_of_the_time_up_to_its_own_limit(stage):
    async def waits():
        with outside():
            await asyncio.sleep(0.4)
        return 1.0

    async with stage(parts(waits), score_timeout_s=0.2) as s:
        scored = await s.run_and_score()
    assert isinstance(scored, Scored)
    assert scored.duration_s < 0.4
    async with stage(parts(waits), score_timeout_s=0.1, score_max_wait_s=0.1, name="w1") as s:
        failed = await s.run_and_score()
    assert failed.cause == "judge"
    assert "reward.max_wait_s" in failed.message


async def test_a_stage_completes_what_the_environment_scored(tmp_path, engines, renderer, monkeypatch):
    added = RewardStage(RewardSettings(), ShapingSettings(format="no", format_penalty=0.25))
    built = RolloutHost.__init__

    def with_stage(self, *args, **options):
        built(self, *args, **options, stage=added)

    async def one(outcome, sandbox):
        return Reward(1.0, ("fine",))

    monkeypatch.setattr(RolloutHost, "__init__", with_stage)
    async with opened(tmp_path, engines, renderer, hello, one) as s:
        scored = await s.run_and_score()
    assert scored.reward == 0.75
    assert scored.metrics == {"unshaped": 1.0, "shaping_format": -0.25}
