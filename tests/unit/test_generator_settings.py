"""Rules inside the `[generator]` section."""

from headway.generator.settings import GeneratorSettings


def test_the_defaults_have_no_problem():
    assert GeneratorSettings().problems() == []


def test_an_answer_leaves_room_for_a_prompt():
    problems = GeneratorSettings(max_context_tokens=128, max_answer_tokens=128).problems()
    assert [(problem.key, problem.value) for problem in problems] == [("max_answer_tokens", 128)]
