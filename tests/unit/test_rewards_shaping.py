"""Form and length beside the score; what a config adds; rewards of groups."""

import pytest

from headway.core.errors import EnvironmentSetupError, RewardFault
from headway.core.records import Reward
from headway.rewards.faults import RewardTimeoutFault
from headway.rewards.group import Member, load_group_reward, shorter
from headway.rewards.judge import Judge
from headway.rewards.rubric import Part, Rubric
from headway.rewards.settings import JudgeSettings, RewardSettings, ShapingSettings
from headway.rewards.shaping import matches, not_truncated, overlong, shaped, tokens_beyond
from headway.rewards.stage import RewardStage
from tests.standins.judge import served
from tests.unit.reward_parts import case


@pytest.mark.parametrize(
    ("num", "penalty"),
    [(0, 0.0), (60, 0.0), (61, -0.025), (80, -0.5), (99, -0.975), (100, -1.0), (500, -1.0)],
)
def test_the_soft_overlong_punishment(num, penalty):
    assert overlong(100, 40)(case("x" * num)) == pytest.approx(penalty)


def test_without_a_buffer_the_punishment_begins_at_once():
    assert [overlong(10, 0)(case("x" * num)) for num in (10, 11)] == [0.0, -1.0]


async def test_shaping_functions_are_parts_of_a_rubric():
    rubric = Rubric(
        Part(lambda answer: 1.0, name="right"),
        Part(matches(r"<a>.*</a>"), 0.1),
        Part(not_truncated, 0.2),
        Part(overlong(10, 4), 1.0),
        Part(tokens_beyond(4, 0.1, 1.0), 1.0),
    )
    reward = await rubric.of(case("<a>\n</a>"))  # 8 tokens
    assert reward.score == pytest.approx(1.0 + 0.1 + 0.2 - 0.5 - 0.4)
    assert reward.metrics == {
        "right": 1.0, "format": 1.0, "not_truncated": 1.0, "overlong": -0.5, "length": pytest.approx(-0.4),
    }  # fmt: skip


def test_the_unshaped_score_stays_visible():
    settings = ShapingSettings(
        format=r"#.*", format_penalty=0.5, truncated_penalty=0.25, free_tokens=2, token_penalty=0.01
    )
    own = Reward(1.0, ("right",), {"speed": 2.0}, (0.5, 1.0))
    reward = shaped(case("#one", "two", finish="length"), own, settings)
    assert reward.metrics == {
        "speed": 2.0, "unshaped": 1.0, "shaping_format": -0.5, "shaping_truncated": -0.25,
        "shaping_length": pytest.approx(-0.05),
    }  # fmt: skip
    assert reward.score == pytest.approx(0.2)
    assert reward.turns == (0.5, pytest.approx(0.2))
    assert reward.reasons[0] == "right"
    assert "shaping_format: -0.5" in reward.reasons


async def test_an_evaluation_is_not_shaped():
    stage = RewardStage(RewardSettings(), ShapingSettings(format="#", format_penalty=0.5))
    assert (await stage.complete(case("x"), Reward(1.0))).score == 0.5
    evaluated = await stage.complete(case("x", split="eval"), Reward(1.0))
    assert (evaluated.score, evaluated.metrics) == (1.0, {})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"format": "("}, "format"),
        ({"format": "a"}, "format_bonus"),
        ({"format_penalty": 0.1}, "format"),
    ],
)
def test_shaping_that_cannot_work_is_refused(changes, key):
    assert key in [problem.key for problem in ShapingSettings(**changes).problems()]


async def test_a_stage_adds_the_judge_and_says_every_part():
    own = Reward(1.0, ("right",), {"speed": 2.0}, (1.0, 0.0))
    with served(5) as server:
        judge = Judge(JudgeSettings(url=server.url, model="m", weight=0.4, per_turn=True))
        stage = RewardStage(RewardSettings(environment_weight=0.5), ShapingSettings(), judge)
        reward = await stage.complete(case("a", "b"), own)
        await stage.close()
    assert reward.score == pytest.approx(0.5 + 0.4 * 0.5)
    assert reward.metrics == {
        "speed": 2.0, "environment": 1.0, "judge": 0.5, "judge_cached": 0.0, "judge_repaired": 0.0,
    }  # fmt: skip
    assert reward.turns == (pytest.approx(0.7), pytest.approx(0.2))
    assert reward.reasons[0] == "right"
    assert reward.reasons[1].startswith("judge: turn 0: 5 by stand-in-1 (prompt ")


def member(answer, reward, num_tokens=1):
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
    return Member(f"r-{answer}", "train/0", reward, num_tokens, (), {}, said)


def test_shorter_prefers_the_short_among_the_best():
    members = [member("a", 1.0, 10), member("b", 1.0, 30), member("c", 0.0, 20), member("d", 0.0, 10)]
    assert shorter(members) == [1.5, 0.5, 0.0, 0.0]
    assert shorter([member("a", 1.0, 5), member("b", 0.0, 5)]) == [1.0, 0.0]


async def test_pairwise_adds_what_the_judge_prefers():
    with served(10, 0) as server:
        judge = Judge(JudgeSettings(url=server.url, model="m", weight=0.5, max_concurrent=1))
        function = load_group_reward("pairwise", judge, 10.0)
        assert await function([member("a", 1.0), member("b", 1.0)]) == [1.5, 1.0]
        await judge.close()
    with pytest.raises(EnvironmentSetupError, match="pairwise needs a judge"):
        load_group_reward("pairwise", None, 10.0)


OWN = """
import asyncio, threading
def ranked(members):
    order = sorted(members, key=lambda one: len(one.answer))
    return [float(order.index(one)) for one in members]
async def awaited(group):
    await asyncio.sleep(0)
    return [one.reward for one in group]
def few(members):
    return [1.0]
def bad(members):
    return [float("nan")] * len(members)
def slow(members):
    threading.Event().wait(1)
"""


async def test_a_group_function_of_ones_own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    members = [member("long", 0.0), member("s", 1.0)]
    assert await load_group_reward(f"{file}:ranked", None, 10.0)(members) == [1.0, 0.0]
    assert await load_group_reward(f"{file}:awaited", None, 10.0)(members) == [0.0, 1.0]
    for name in ("few", "bad"):
        with pytest.raises(RewardFault, match="one finite number for each of 2 rollouts"):
            await load_group_reward(f"{file}:{name}", None, 10.0)(members)
    with pytest.raises(RewardTimeoutFault, match=r"reward of the group \(.*slow\) must end within 0.01 s"):
        await load_group_reward(f"{file}:slow", None, 0.01)(members)
