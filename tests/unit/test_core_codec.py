"""The journal is strict JSON: dumps refuses a number that is not finite, metrics lose it where they enter."""

import json
import math
from dataclasses import dataclass

import pytest

from headway.core.codec import dumps, encoded, finite_only
from headway.core.commands import Score, Train
from headway.core.events import Scored, StepEnded
from headway.core.protocols import StepResult
from headway.core.records import Reward
from headway.environments.steps import scored
from headway.runtime.trainer_worker import take_step

ODD = {"good": 1, "nan": math.nan, "inf": math.inf, "huge": 10**400, "low": -math.inf}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_dumps_refuses_what_json_has_no_word_for(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"a": [value]})


def test_finite_only_keeps_what_dumps_can_write():
    assert finite_only(ODD) == {"good": 1.0}
    assert finite_only({}) == {}


def strict(event):
    return json.loads(dumps(event), parse_constant=pytest.fail)


def test_an_environments_metric_that_is_not_finite_is_left_out_of_the_score():
    event = scored(Score("g.0", 0, 1, "t", "p"), Reward(0.5, ("half",), ODD), 1.0, 0.0)
    assert event == Scored("g.0", 0, 1, 0.5, ("half",), 1.0, 0.0, {"good": 1.0})
    assert strict(event)["metrics"] == {"good": 1.0}


@dataclass
class Trainer:
    def step(self, rows, lr_scale=1.0, *, num_gathered=0):
        return StepResult(1, 1, dict(ODD))


def test_a_trainers_metric_that_is_not_finite_is_left_out_of_the_step():
    event = take_step(Trainer(), Train(0, 1, ()))
    assert isinstance(event, StepEnded)
    assert strict(event)["metrics"] == {"good": 1.0}


def test_text_that_utf_8_lacks_is_read_back_as_it_was():
    value = {"text": "é \ud800 \\ud800 \x00", "t": 1.5}
    assert json.loads(encoded(value)) == value
    assert encoded("é") == '"é"'.encode()
