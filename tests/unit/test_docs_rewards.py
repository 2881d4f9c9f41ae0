"""What docs/rewards.md shows works."""

import re
from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.rewards.group import Member
from tests.unit.reward_parts import case

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


async def test_the_rubric_scores():
    (rubric, suite) = blocks("python")
    space = {}
    exec(rubric, space)
    reward = await space["rubric"].of(case("4", payload={"sum": 4}))
    assert reward.score == pytest.approx(0.9 + 0.1 / 3)
    assert reward.metrics == {"right": 1.0, "short": pytest.approx(1 / 3), "length": 1.0}
    exec(suite, space)
    assert space["tests"].mode == "fraction"


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.partition("\n")[0])
def test_the_sections_load(block, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\npath = "tiny"\n[environment]\nname = "arithmetic"\n{block}')
    load_config(file)


def test_the_group_function_counts_what_is_said_twice():
    (body,) = re.findall(r"( {4}def diverse.*?)\n\n", PAGE, re.DOTALL)
    space = {}
    exec(re.sub(r"(?m)^ {4}", "", body), space)
    said = [
        Member("r", "t", 1.0, 1, (), {}, [{"role": "assistant", "content": answer}])
        for answer in ("a", "a", "b")
    ]
    assert space["diverse"](said) == [0.5, 0.5, 1.0]
