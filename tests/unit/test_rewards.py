"""Verifiers read answers; a reward is a finite number."""

import math

import pytest

from headway.core.errors import RewardFault
from headway.core.records import Reward
from headway.rewards.check import checked
from headway.rewards.verifiers import equals_number, extract_python_block, last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("173", 173), ("The result is 173.", 173), ("74 + 99 = 173", 173), ("1,234,567!", 1234567),
        ("1,2", 2), ("-12", -12), ("it is -12.5", -12.5), ("5-12", 12), ("x-12", 12), ("(3)-12", 12),
        ("7 - -8", -8), ("007", 7), ("3.", 3), ("v2 of 3.25", 3.25), ("none", None), ("", None),
        ("12,34", 34), ("1e5", 5),
    ],
)  # fmt: skip
def test_last_number(text, number):
    assert last_number(text) == number


def test_equals_number():
    assert equals_number("so 173.0", 173)
    assert not equals_number("173 or 174", 173)
    assert not equals_number("", 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("Sure!\n```python\nprint(1)\n```\nDone", "print(1)\n"),
        ("```py\na\n\nb\n```\n", "a\n\nb\n"),
        ("```python\n1\n```\n```python\n2\n```", "1\n"),
        ("```python\n```", ""),
        ("```python\nprint('```')\n```", "print('```')\n"),
        ("```python\nprint(1)", None),
        ("```\nprint(1)\n```", None),
        ("print(1)", None),
    ],
)
def test_extract_python_block(text, code):
    assert extract_python_block(text) == code


@pytest.mark.parametrize("score", [math.nan, math.inf, 10**400, "1", None, True])
def test_a_score_that_is_no_finite_number_is_a_fault(score):
    with pytest.raises(RewardFault, match="score must be a finite number"):
        checked(Reward(score))


def test_a_metric_is_checked_too_and_a_bare_number_is_no_reward():
    with pytest.raises(RewardFault, match="speed must be a number"):
        checked(Reward(1.0, metrics={"speed": "fast"}))
    checked(Reward(1.0, metrics={"speed": math.nan}))  # costs the number, not the score
    with pytest.raises(RewardFault, match="strings as names"):
        checked(Reward(1.0, metrics={3: 1.0}))  # the journal and the summary cannot hold these
    with pytest.raises(RewardFault, match="reasons of a reward must be strings"):
        checked(Reward(1.0, (object(),)))
    with pytest.raises(RewardFault, match="must return a Reward"):
        checked(1.0)
    reward = Reward(0.5, ("half",), {"speed": 2.0})
    assert checked(reward) is reward


def test_rewards_of_turns_are_finite_numbers_one_for_each_answer():
    assert checked(Reward(1.0, turns=(0.5, 1)), 2).turns == (0.5, 1)
    assert checked(Reward(1.0), 2).turns == ()
    with pytest.raises(RewardFault, match="one for each of the 3 answers"):
        checked(Reward(1.0, turns=(0.5, 1.0)), 3)
    for bad in (math.nan, "1", True):
        with pytest.raises(RewardFault, match="rewards of turns must be finite numbers"):
            checked(Reward(1.0, turns=(bad,)), 1)
