"""Verifiers read answers; a reward is a finite number."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from headway.core.errors import RewardFault
from headway.core.records import Reward
from headway.rewards.case import as_reward
from headway.rewards.check import checked
from headway.rewards.group import _finite
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


LIBRARIES = [
    np.float32(0.5), np.float64(0.5), np.float16(0.5), np.array(0.5), torch.tensor(0.5), Fraction(1, 2),
    torch.tensor(0.5, requires_grad=True),
]  # fmt: skip


@pytest.mark.parametrize("value", LIBRARIES, ids=lambda value: type(value).__name__)
def test_numbers_of_libraries_become_python_s(value):
    reward = checked(Reward(value, metrics={"share": value}, turns=(value, 1)))
    assert reward == Reward(0.5, metrics={"share": 0.5}, turns=(0.5, 1))
    assert {type(one) for one in (reward.score, *reward.metrics.values(), *reward.turns)} == {float, int}
    assert as_reward("own", value) == Reward(0.5)
    assert as_reward("own", (value, "half")) == Reward(0.5, ("half",))
    assert _finite([value, 1], 2, "own") == [0.5, 1.0]


def test_whole_numbers_of_libraries_stay_whole():
    for value in (np.int64(2), torch.tensor(2), np.uint8(2)):
        assert checked(Reward(value)).score == 2
        assert type(checked(Reward(value)).score) is int


def test_truth_values_are_rewards_of_a_function_and_no_scores():
    for value in (True, np.bool_(True), np.array(True), torch.tensor(True)):
        assert as_reward("own", value) == Reward(1.0)
        with pytest.raises(RewardFault, match="score must be a finite number"):
            checked(Reward(value))


@pytest.mark.parametrize(
    "value",
    [np.float32("nan"), torch.tensor(math.inf), np.array([0.5]), torch.ones(1), np.str_("1"), 1j, b"1"],
)
def test_what_is_no_finite_number_is_refused_whoever_made_it(value):
    with pytest.raises(RewardFault, match="score must be a finite number"):
        checked(Reward(value))
    with pytest.raises(RewardFault, match=r"finite number|must return a number"):
        as_reward("own", value)


def test_rewards_of_a_group_may_be_an_array():
    for values in (np.array([0.5, 1.0]), torch.tensor([0.5, 1.0])):
        assert _finite(values, 2, "own") == [0.5, 1.0]
    for values in (np.ones((2, 1)), np.array(1.0), "11", np.array([0.5, math.nan]), [np.array([1.0]), 1.0]):
        with pytest.raises(RewardFault, match="one finite number for each of 2 rollouts"):
            _finite(values, 2, "own")
