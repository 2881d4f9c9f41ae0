"""How an error reads."""

import pickle

import pytest

from headway.core.errors import UserError


@pytest.mark.parametrize(
    ("rule", "value", "remedy", "text"),
    [
        ("must be 1", 2, "Use 1.", "must be 1 (got 2). Use 1"),
        ("must be 1", 2, "Use 1", "must be 1 (got 2). Use 1"),
        ("must be 1.", None, "Did you mean one?", "must be 1. Did you mean one?"),
        ("must be 1.", None, "", "must be 1"),
        ("must be 1", None, "First this. Then that. ", "must be 1. First this. Then that"),
        ("must be 1", None, "Write key = ...", "must be 1. Write key = ..."),
    ],
)
def test_rule_and_remedy_are_punctuated_alike_however_they_were_written(rule, value, remedy, text):
    error = UserError(rule, value=value, remedy=remedy, key="a.b", where="c.toml:3")
    assert str(error) == f"c.toml:3: a.b: {text}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
