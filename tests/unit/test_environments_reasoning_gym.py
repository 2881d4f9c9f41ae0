"""`reasoning-gym:NAME`: names, splits, the child process; a stand-in for the library, and the real one."""

import asyncio
import importlib.util
import sys
import textwrap

import pytest

from headway.cli.main import main
from headway.core.errors import EnvironmentSetupError
from headway.core.protocols import Outcome
from headway.environments.reasoning_gym.draws import Splits
from headway.environments.reasoning_gym.names import known_datasets
from headway.environments.reasoning_gym.process import ChildDiedError, ChildOverdueError, LibraryRaisedError
from headway.environments.registry import build, members, settings_type

STAND_IN = textwrap.dedent('''
    import os, time
    from dataclasses import dataclass

    @dataclass
    class Config:
        seed: int = 0
        size: int = 500
        largest: int = 9

        def validate(self):
            assert self.largest < 10_000, "too large"

    class Sums:
        """Adds."""

        def __init__(self, config):
            self.config = config

        def __getitem__(self, index):
            a = (self.config.seed + index * 7919) % (self.config.largest + 1)
            return {"question": f"{a}+1=", "answer": str(a + 1), "metadata": {"a": a}}

        def score_answer(self, answer, entry):
            match answer:
                case "hang":
                    while True: pass
                case "sleep": time.sleep(600)
                case "crash": os._exit(7)
                case "raise": raise ValueError("bad answer")
                case "nan": return float("nan")
                case "environment": return float("SECRET" in os.environ)
            if answer.startswith("eval "):
                eval(answer[5:])
            return float(answer == entry["answer"])

    class Attribute:
        levels = [9, 99, 99_999]

    class Curriculum:
        attributes = {"largest": Attribute}

        def set_global_level(self, level):
            self.level = level

        def generate_configuration(self, defaults):
            return Config(**defaults, largest=Attribute.levels[self.level])

    DATASETS = {"chain_sum": (Sums, Config)}
    CURRICULA = {"chain_sum": Curriculum}
''')


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """Make environments on the stand-in; their processes end with the test."""
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text("")
    (tmp_path / "reasoning_gym" / "factory.py").write_text(STAND_IN)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("SECRET", "1")
    made = []

    def make(seed=0, **args):
        made.append(build("reasoning-gym:chain_sum", {"num_eval": 4, **args}, seed))
        return made[-1]

    yield make
    for one in made:
        one.close()


def score(environment, answer, index=0):
    task = environment.task("train", index, None)
    return asyncio.run(environment.score(task, Outcome({"reply": "", "answer": answer}), None))


def test_a_task_is_the_same_in_every_environment_and_levels_are_the_curriculums(sums):
    one, other = sums(), sums()
    assert [one.task("train", i, 2) for i in range(20)] == [other.task("train", i, 2) for i in range(20)]
    assert {one.task("train", i, 2).level for i in range(5)} == {2}
    assert max(int(one.task("train", i, 2).payload["answer"]) for i in range(50)) > 10
    assert one.task("train", 3, None).level == 0
    with pytest.raises(EnvironmentSetupError, match="a level of reasoning-gym:chain_sum is 0 to 3"):
        one.task("train", 0, 4)
    with pytest.raises(
        EnvironmentSetupError, match=r"levels \(3,\); the library failed: AssertionError: too large"
    ):
        one.task("train", 0, 3)


def test_where_problems_are_few_the_splits_differ_all_the_same(sums):
    environment = sums(num_eval=64)
    held_out = {
        environment.task("eval", i, None).payload["question"] for i in range(environment.num_tasks("eval"))
    }
    trained = {environment.task("train", i, None).payload["question"] for i in range(200)}
    assert held_out
    assert held_out.isdisjoint(trained)
    assert len(held_out | trained) == 10


def test_an_answer_is_judged_elsewhere_and_what_happens_there_is_no_reward(sums):
    environment = sums(verifier_timeout_s=5)
    right = environment.task("train", 0, None).payload["answer"]
    assert (score(environment, right).score, score(environment, "no").score) == (1.0, 0.0)
    assert score(environment, None).reasons == ("the reply holds no <answer>...</answer>",)
    assert score(environment, "environment").score == 0.0
    with pytest.raises(LibraryRaisedError, match="ValueError: bad answer"):
        score(environment, "raise")
    with pytest.raises(LibraryRaisedError, match="the verifier returned nan"):
        score(environment, "nan")
    with pytest.raises(ChildDiedError, match="with exit code 7"):
        score(environment, "crash")
    assert score(environment, right).score == 1.0
    environment._settings = settings_type("reasoning-gym:chain_sum")(verifier_timeout_s=0.2)
    for answer in ("hang", "sleep"):
        with pytest.raises(ChildOverdueError, match=r"within 0.2 s of the processor's time"):
            score(environment, answer)
    assert score(environment, right).score == 1.0


def test_what_a_verifier_evaluates_writes_no_file_and_starts_no_process(sums, tmp_path):
    environment = sums()
    library = str(tmp_path / "reasoning_gym" / "factory.py")
    harmful = [
        f"open({str(tmp_path / 'x')!r}, 'w')",
        "__import__('os').system('true')",
        "__import__('subprocess').run(['true'])",
        "__import__('socket').create_connection(('::1', 1))",
        f"__import__('os').remove({library!r})",
    ]
    for harm in harmful:
        with pytest.raises(LibraryRaisedError, match="PermissionError: a verifier may"):
            score(environment, f"eval {harm}")
    assert not (tmp_path / "x").exists()


def test_a_draw_that_takes_for_ever_is_drawn_again(sums, tmp_path):
    path = tmp_path / "reasoning_gym" / "factory.py"
    line = "        a = (self.config"
    assert line in path.read_text()
    slow = f"        if index % 4 == 1:\n            while True: pass\n{line}"
    path.write_text(path.read_text().replace(line, slow))
    one, other = (sums(task_timeout_s=0.05, num_eval=1) for _ in range(2))
    assert [one.task("train", i, None) for i in range(12)] == [
        other.task("train", i, None) for i in range(12)
    ]
    path.write_text(path.read_text().replace("index % 4 == 1", "True"))
    with pytest.raises(EnvironmentSetupError, match="the library failed: reasoning-gym must answer within"):
        sums(task_timeout_s=0.05)


def test_where_the_answer_is(sums):
    tags, reply = sums(), sums(answer_in="reply", instruction="Briefly.")
    assert tags._answer("x <answer>1</answer> y <answer>\n 2 </answer>") == "2"
    assert tags._answer("2") is None
    assert reply._answer(" 2\n") == "2"
    assert tags.stop_strings == ("</answer>",)
    assert reply.prompt(reply.task("train", 0, None))[0].content.endswith("+1=\n\nBriefly.")


def test_parameters_of_the_dataset(sums):
    environment = sums(config={"largest": 3})
    answers = {environment.task("train", index, None).payload["answer"] for index in range(50)}
    assert answers <= {"1", "2", "3", "4"}
    with pytest.raises(
        EnvironmentSetupError, match=r"no such parameter \(got 'larges'\). Did you mean largest"
    ):
        sums(config={"larges": 3})
    with pytest.raises(EnvironmentSetupError, match=r"config.seed: .*Use run.seed"):
        sums(config={"seed": 3})


def test_names_without_the_library(tmp_path, monkeypatch, capsys):
    datasets = known_datasets()
    assert len(datasets) == 105
    assert settings_type("reasoning-gym:sudoku").__name__ == "ReasoningGymSettings"
    assert dict(members("reasoning-gym"))["reasoning-gym:chain_sum"].startswith("levels 1 to ")
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if "site-packages" not in path and "rg" not in path]
    )
    (tmp_path / "reasoning_gym.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'reasoning_gym'\")"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(EnvironmentSetupError, match=r"(?s)no such dataset.*Did you mean sudoku.*pip install"):
        settings_type("reasoning-gym:sudko")
    with pytest.raises(EnvironmentSetupError, match=r"must be installed .*pip install"):
        build("reasoning-gym:sudoku")
    assert main(["env", "list", "reasoning-gym"]) == 0
    assert "reasoning-gym:zebra_puzzles: levels 1 to " in capsys.readouterr().out


def test_near_misses_and_the_composite():
    with pytest.raises(EnvironmentSetupError, match="Did you mean reasoning-gym:sudoku"):
        settings_type("reasoning-gim:sudoku")
    with pytest.raises(EnvironmentSetupError, match="Did you mean reasoning-gym:NAME"):
        settings_type("reasoning-gy")


def test_a_split_of_many_problems_holds_out_as_many_as_asked():
    splits = Splits("s", 0, (1, 2), 16, lambda level, draw: f"{level}/{draw % 5000}")
    assert (len(splits.evals), splits.few) == (16, False)
    assert splits.evals == Splits("s", 9, (1, 2), 16, lambda level, draw: f"{level}/{draw % 5000}").evals
    keys = {drawn.key for drawn in splits.evals}
    trained = [splits.train(index, None) for index in range(3000)]
    assert keys.isdisjoint(drawn.key for drawn in trained)
    assert {drawn.level for drawn in trained} == {1, 2}
    one = Splits("one", 0, (1,), 4, lambda level, draw: "a")
    one._eval_keys = {"a"}
    with pytest.raises(EnvironmentSetupError, match="too few problems"):
        one.train(0, None)


@pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)
def test_the_real_library():
    environment = build("reasoning-gym:chain_sum", {"levels": [1], "num_eval": 8, "answer_in": "reply"})
    task = environment.task("train", 0, None)
    assert score(environment, task.payload["answer"]).score == 1.0
    assert score(environment, "no number").score == 0.0
    assert environment.num_levels == known_datasets()["chain_sum"].num_levels
    environment.close()
