"""Environments by name, their arguments, their tasks and splits."""

import re
import textwrap

import pytest

from headway.core.errors import EnvironmentSetupError
from headway.environments.registry import argument_problems, build, names_and_summaries
from headway.environments.tasks import find_task, split_of

FUNCTIONS = {"kind": "function", "levels": [1, 2, 3]}


def problem_of(environment, task):
    """What a task asks, its wording and the order of a sum aside."""
    payload = task.payload
    if payload.get("kind") == "function":
        words = environment.prompt(task)[0].content
        return ("function", words)
    a, b = payload["a"], payload["b"]
    return (payload["op"], *((a, b) if payload["op"] == "-" else sorted((a, b))))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("arithmetic", {"levels": [1, 2, 3, 4]}),
        ("arithmetic", {"levels": [2], "style": "question"}),
        ("python-code", {"levels": [1, 2, 3]}),
        ("python-code", {"levels": [1]}),
        ("python-code", FUNCTIONS),
    ],
)
def test_no_problem_is_in_both_splits_whatever_the_seed(name, args):
    environment = build(name, args, seed=1)
    held_out = {
        problem_of(environment, environment.task("eval", i, None))
        for i in range(environment.num_tasks("eval"))
    }
    assert len(held_out) == environment.num_tasks("eval")
    for seed in range(3):
        other = build(name, args, seed=seed)
        for level in (None, *args["levels"]):
            trained = {problem_of(other, other.task("train", index, level)) for index in range(300)}
            assert not trained & held_out


def test_the_default_evaluation_of_python_code_has_64_tasks():
    assert build("python-code").num_tasks("eval") == 64
    assert build("python-code").num_tasks("train") is None


def test_tasks_follow_from_seed_and_position():
    one, same, other = (build("python-code", {}, seed) for seed in (1, 1, 2))
    positions = range(20)
    tasks = [one.task("train", index, None) for index in positions]
    assert tasks == [same.task("train", index, None) for index in positions]
    assert tasks != [other.task("train", index, None) for index in positions]
    assert [one.task("eval", i, None) for i in positions] == [other.task("eval", i, None) for i in positions]


def test_ids_lead_back_to_tasks():
    environment = build("python-code", {"levels": [1, 2]}, 7)
    for position in (("train", 3, None), ("train", 3, 2), ("eval", 5, None)):
        task = environment.task(*position)
        assert find_task(environment, task.id) == task
    assert environment.task("train", 17, 2).id == "train/17@2"
    with pytest.raises(EnvironmentSetupError, match="train/17"):
        find_task(environment, "nonsense")


@pytest.mark.parametrize(
    "position", [("test", 0, None), ("eval", 64, None), ("train", -1, None), ("train", 0, 9), ("train", 0, 0)]
)
def test_a_position_that_does_not_exist_is_refused(position):
    with pytest.raises(EnvironmentSetupError):
        build("python-code").task(*position)


def test_levels_bound_the_operands():
    environment = build("arithmetic", {"levels": [1]})
    for level, limit, op in ((1, 10, "+"), (2, 20, "+"), (3, 100, "+"), (4, 100, "-")):
        tasks = [environment.task("train", index, level) for index in range(100)]
        assert {task.level for task in tasks} == {level}
        assert {task.payload["op"] for task in tasks} == {op}
        assert max(task.payload["a"] for task in tasks) in range(limit - limit // 4, limit)
    assert all(task.payload["a"] >= task.payload["b"] for task in tasks)


def test_prompts_read_as_they_should():
    bare = build("arithmetic", {"levels": [2]})
    assert re.fullmatch(r"\d+\+\d+=", bare.prompt(bare.task("train", 0, None))[0].content)
    question = build("arithmetic", {"style": "question"})
    assert re.fullmatch(r"What is \d+ \+ \d+\?", question.prompt(question.task("train", 0, None))[0].content)
    code = build("python-code")
    words = {code.prompt(code.task("train", index, None))[0].content for index in range(50)}
    assert all(re.search(r"\d\d [-+*] \d\d", text) for text in words)
    assert all(text.endswith(" Reply with one ```python block only.") for text in words)
    assert any(text.startswith("Print ") and " using Python. " in text for text in words)


def test_built_in_environments_are_listed_with_a_summary():
    assert [name for name, _ in names_and_summaries()] == ["arithmetic", "python-code"]
    assert all(len(summary) > 20 for _, summary in names_and_summaries())


def test_an_unknown_name_gets_a_guess():
    with pytest.raises(EnvironmentSetupError, match="Did you mean arithmetic"):
        build("aritmetic")


@pytest.mark.parametrize(
    ("args", "key", "words"),
    [
        ({"sytle": "bare"}, "sytle", "Did you mean style"),
        ({"style": "bar"}, "style", "'bare' or 'question'"),
        ({"levels": [1, 9]}, "levels", "at most 4"),
        ({"levels": 3}, "levels", "valid"),
        ({"num_eval": 0}, "num_eval", "at least 1"),
        ({"num_eval": "64"}, "num_eval", "integer"),
    ],
)
def test_a_wrong_argument_is_named(args, key, words):
    (problem,) = argument_problems("arithmetic", args)
    assert problem.key.split(".")[0] == key
    assert words in f"{problem.rule} {problem.remedy}"
    with pytest.raises(EnvironmentSetupError, match=r"environment\.args"):
        build("arithmetic", args)


def test_all_wrong_arguments_are_found_at_once():
    assert len(argument_problems("python-code", {"kind": "x", "tunrs": 1, "turns": "x"})) == 3
    assert argument_problems("python-code", {"operations": []})[0].key == "operations"
    assert argument_problems("python-code", {"turns": 3, "levels": [0]}) != []


MINE = textwrap.dedent('''
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Settings:
        size: int = 3

    class Mine:
        """Mine."""
        name = "mine"
        settings_type = Settings
        resume = "restart"
        needs_sandbox = False
        stop_strings = ()
        system_prompt = None
        def __init__(self, settings, seed): self.size = settings.size
        def num_tasks(self, split): return self.size
        def task(self, split, index, level): ...
        def prompt(self, task): ...
        async def rollout(self, task, chat, sandbox): ...
        async def score(self, task, outcome, sandbox): ...
''')


def test_a_file_and_an_import_path_are_environments(tmp_path, monkeypatch):
    file = tmp_path / "my_environment.py"
    file.write_text(MINE)
    assert build(str(file), {"size": 5}).num_tasks("train") == 5
    assert build(f"{file}:Mine").num_tasks("train") == 3
    monkeypatch.syspath_prepend(tmp_path)
    assert build("my_environment:Mine").num_tasks("train") == 3


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.py", None, "does not exist"),
        ("raises.py", "1 / 0", "ZeroDivisionError"),
        ("empty.py", "", "exactly one class"),
        (
            "short.py",
            "class Mine:\n    def rollout(self): ...",
            "needs num_tasks, task, prompt, score, settings_type",
        ),
        ("named.py:Other", MINE, "no class Other"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text)
    with pytest.raises(EnvironmentSetupError, match=words):
        build(str(tmp_path / name))


def test_a_module_that_cannot_be_imported_says_why():
    with pytest.raises(EnvironmentSetupError, match="cannot be imported"):
        build("no_such_module_here:Mine")


def test_the_split_is_a_quarter():
    share = sum(split_of("x", (number,)) == "eval" for number in range(4000)) / 4000
    assert 0.2 < share < 0.3
