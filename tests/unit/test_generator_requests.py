"""What is refused before it reaches the decode loop, with the name of the field."""

import math
from array import array
from dataclasses import replace

import pytest

from headway.core.protocols import GenerateRequest, Sampling
from headway.generator.requests import problem

GOOD = GenerateRequest("a", "a", "a", "main", array("i", [1, 2, 3]), Sampling(8))
BIG = 10**5000  # has more digits than Python prints


def problem_of(item):
    return problem(item, context=16, vocab=9, decodes_text=True, streams=("kept_ids",))


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 10**30},
        {"temperature": 1},
        {"temperature": 1e-6},
        {"temperature": 1e6},
        {"top_k": 10**30},
        {"top_p": 1e-320, "min_p": 1e-320},
        {"seed": -(10**40)},
        {"stop_ids": [3, 10**30], "stop_strings": ["", "\U0001f600"]},
    ],
)
def test_what_is_odd_but_well_defined_runs(options):
    assert problem_of(replace(GOOD, sampling=replace(GOOD.sampling, **options))) == ""


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 2.5, 8.0, True, None, "8", math.inf, -BIG]),
        (
            "temperature",
            [-1, 5e-324, 1e-45, 9e-7, math.inf, math.nan, 1e300, 10**400, BIG, True, "1", None, 1j],
        ),
        ("top_p", [0, -0.5, 1.1, math.nan, True, "1", None]),
        ("top_k", [-1, 2.5, math.nan, True, "1", None]),
        ("min_p", [-0.1, 1.5, math.nan, False, "0", None]),
        ("seed", [0.5, True, "0", None, BIG, -BIG]),
        ("stop_ids", [5, None, "5", ("5",), (True,), (1.0,), ([],), (BIG, "5")]),
        ("stop_strings", [None, "x", (5,), (b"x",), ("\ud800",)]),
    ],
)
def test_a_wrong_value_of_the_sampling_is_named(field, values):
    for value in values:
        found = problem_of(replace(GOOD, sampling=replace(GOOD.sampling, **{field: value})))
        assert found.startswith(f"{field} must be "), (value, found)
        assert len(found) < 200


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("request_id", [5, None, ["a"]]),
        ("session", [5, None, ["a"]]),
        ("group", [5, None, ["a"]]),
        ("policy", [5, None, ["a"]]),
        ("num_answer_tokens", [0.0, True, None, "0"]),
        ("priority", [0.5, math.nan, True, None, "0"]),
        ("streams", [None, "kept_ids", (5,), ([],)]),
        ("prompt_ids", [None, 5, "12", b"12", [1.0], [True], ["1"], [None], [[1]], array("d", [1.0])]),
    ],
)
def test_a_wrong_value_of_the_request_is_named(field, values):
    for value in values:
        found = problem_of(replace(GOOD, **{field: value}))
        assert found.startswith(f"{field} must be "), (value, found)
