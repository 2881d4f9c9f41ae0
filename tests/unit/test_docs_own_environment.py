"""The example of an environment of one's own keeps to what the documentation says of one."""

from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.core.protocols import Outcome
from headway.core.records import Task
from headway.environments.registry import build

ROOT = Path(__file__).parents[2]
FILE = "examples/own_environment/reverse.py"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_its_config_loads_and_names_the_file():
    config = load_config(ROOT / "examples" / "own_environment" / "reverse.toml")
    assert config.environment.name == str(ROOT / FILE)
    assert config.environment.args == {"digits": 2, "num_eval": 32}


def test_tasks_are_the_same_in_every_process_and_no_task_is_in_both_splits():
    one, other = (build(FILE, {"digits": 3}, seed=4) for _ in range(2))
    train = [one.task("train", index, None) for index in range(200)]
    held_out = [one.task("eval", index, None) for index in range(32)]
    assert train == [other.task("train", index, None) for index in range(200)]
    assert held_out == [build(FILE, {"digits": 3}, seed=5).task("eval", index, None) for index in range(32)]
    assert not {task.payload["number"] for task in train} & {task.payload["number"] for task in held_out}


@pytest.mark.parametrize(
    ("answer", "score"), [("48", 1.0), ("47", 0.5), ("4", 0.5), ("84", 0.0), ("480", 0.0), ("", 0.0)]
)
async def test_the_score_is_the_share_of_right_digits_unless_there_are_too_many(answer, score):
    task = Task("train/0", "train", 2, {"number": "84"})
    reward = await build(FILE, seed=0).score(task, Outcome({"answer": answer}), None)
    assert reward.score == score
