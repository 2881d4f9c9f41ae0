"""Patterns of users mean what re takes them for; a text that a matcher cannot be done with has no match."""

import re

import pytest

from headway.core.errors import EnvironmentSetupError
from headway.core.records import Reward
from headway.environments.dataset.rewards import judge
from headway.environments.dataset.settings import DatasetSettings
from headway.rewards.grades import Unreadable, read_grade
from headway.rewards.patterns import compiled, fits, last_match
from headway.rewards.settings import JudgeSettings, ShapingSettings
from headway.rewards.shaping import shaped
from headway.rewards.suite import Suite, read_pattern
from tests.unit.reward_parts import case

ENDLESS = r"(a|aa)+$"
TEXT = "a" * 200 + "b"  # re would need longer than the universe has been there


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"#### (.+)", "#### 3\n#### 4\n"),
        (r"(\d*)", "a12b"),
        (r"(?P<passed>\d+) of (?P<total>\d+)", "1 of 2, 3 of 4"),
        (r"^(\d)$", "1\n2\n"),
        (r"x(y)?", "xyx"),
        (r"(?i)score: (\d)", "SCORE: 7"),
    ],
)
def test_the_last_match_is_that_of_re(pattern, text):
    for multiline in (False, True):
        ours = last_match(compiled(pattern, multiline=multiline), text)
        theirs = list(re.finditer(pattern, text, re.MULTILINE * multiline))
        assert (ours is None) == (not theirs)
        if ours is not None:
            assert (ours.span(), ours.groups()) == (theirs[-1].span(), theirs[-1].groups())


def test_a_whole_match_spans_lines_where_it_is_told_to():
    assert fits(compiled("<a>.*</a>", dotall=True), "<a>1\n2</a>", whole=True)
    assert not fits(compiled("<a>.*</a>"), "<a>1\n2</a>", whole=True)
    assert not fits(compiled("<a>.*</a>"), "<a>1</a> ", whole=True)
    assert fits(compiled("<a>.*</a>"), "<a>1</a> ")


def test_what_takes_too_long_has_no_match():
    with pytest.raises(TimeoutError):
        compiled(ENDLESS).search(TEXT, timeout=0.1)
    assert not fits(compiled(ENDLESS), TEXT)
    assert not fits(compiled(ENDLESS), TEXT, whole=True)
    assert last_match(compiled(ENDLESS, multiline=True), f"aaa\n{TEXT}") is None


def test_every_pattern_of_users_is_given_up_in_time():
    reward = shaped(case(TEXT), Reward(1.0), ShapingSettings(format=ENDLESS, format_penalty=0.5))
    assert reward.metrics["shaping_format"] == -0.5
    with pytest.raises(Unreadable, match="no score in the form"):
        read_grade(TEXT, JudgeSettings(url="http://localhost", model="m", form="pattern", pattern=ENDLESS))
    assert read_pattern(ENDLESS, TEXT) is None
    assert judge("regex", TEXT, ENDLESS).score == 0.0


def test_what_is_no_pattern_is_refused():
    with pytest.raises(ValueError, match="missing"):
        compiled("(")
    with pytest.raises(
        EnvironmentSetupError, match="the pattern of a suite must be a regular expression: missing"
    ):
        Suite(argv=("true",), result="pattern", pattern="(")
    (problem,) = DatasetSettings(data="x", reward="number", reply_pattern="(").problems()
    assert problem.rule.startswith("must be a regular expression: missing")
