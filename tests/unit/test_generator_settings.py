"""Rules inside the `[generator]` section."""

import pytest

from headway.generator.settings import GeneratorSettings


def test_the_defaults_have_no_problem():
    assert GeneratorSettings().problems() == []


def test_an_answer_leaves_room_for_a_prompt():
    problems = GeneratorSettings(max_context_tokens=128, max_answer_tokens=128).problems()
    assert [(problem.key, problem.value) for problem in problems] == [("max_answer_tokens", 128)]


@pytest.mark.parametrize("truncation", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_exact_numerics_draw_from_the_whole_distribution(truncation):
    assert GeneratorSettings(numerics="exact").problems() == []
    (problem,) = GeneratorSettings(numerics="exact", **truncation).problems()
    assert problem.key == "numerics"
