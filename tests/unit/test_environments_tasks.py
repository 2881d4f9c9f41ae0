"""Environments by name, their arguments, their tasks and splits."""

import re
import textwrap

import pytest

from headway.core.errors import EnvironmentSetupError
from headway.environments.arguments import read_arguments
from headway.environments.registry import build, names_and_summaries, settings_type
from headway.environments.tasks import split_of

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


def test_a_task_says_its_position():
    environment = build("python-code", {"levels": [1, 2]}, 7)
    positions = (("train", 3, None), ("train", 17, 2), ("eval", 5, None))
    assert [environment.task(*position).id for position in positions] == ["train/3", "train/17/2", "eval/5"]


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
    assert [name for name, _ in names_and_summaries()] == [
        "arithmetic",
        "bugfix",
        "dataset",
        "harness",
        "python-code",
        "reasoning-gym:NAME",
        "swe-bench",
        "verifiers:NAME",
    ]
    assert all(len(summary) > 20 for _, summary in names_and_summaries())


def test_an_unknown_name_gets_a_guess():
    with pytest.raises(EnvironmentSetupError, match="Did you mean arithmetic"):
        build("aritmetic")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"sytle": "bare"}, "sytle: is not an argument of the environment arithmetic (got 'bare'). Did you"),
        ({"style": "bar"}, 'style: must be "bare" or "question" (got \'bar\'). Did you mean "bare"?'),
        ({"levels": [1, 9]}, "levels: the second entry must be at least 1 and at most 4 (got [1, 9])"),
        ({"levels": 3}, "levels: must be a list of integer (got 3)"),
        ({"num_eval": 0}, "num_eval: must be at least 1 (got 0)"),
        ({"num_eval": "64"}, "num_eval: must be an integer (got '64')"),
        ({"num_eval": "64", "style": 1}, "num_eval: must be an integer (1 more problem) (got '64')"),
    ],
)
def test_a_wrong_argument_is_named(args, message):
    with pytest.raises(EnvironmentSetupError) as caught:
        build("arithmetic", args)
    assert str(caught.value).startswith(f"environment.args.{message}")


def test_all_wrong_arguments_are_found_at_once():
    def problems(args):
        return read_arguments("python-code", settings_type("python-code"), args)[1]

    assert len(problems({"kind": "x", "tunrs": 1, "turns": "x"})) == 3
    assert problems({"operations": []})[0].key == "operations"
    assert problems({"turns": 3, "levels": [0]}) != []


MINE = textwrap.dedent('''
    from __future__ import annotations
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
    assert type(build(f"{file}:Mine")) is type(build(str(file)))
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "my_environment.py"
    other.write_text(MINE.replace("size: int = 3", "size: int = 4"))
    assert build(str(other)).num_tasks("train") == 4
    monkeypatch.syspath_prepend(tmp_path)
    assert build("my_environment:Mine").num_tasks("train") == 3


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.py", None, "does not exist"),
        ("raises.py", "1 / 0", "ZeroDivisionError"),
        ("empty.py", "", "exactly one class"),
        ("exits.py", "import sys; sys.exit(0)", "SystemExit: 0 at exits.py:1"),
        ("typo.py", "def f(:", "SyntaxError: .* at typo.py:1 "),
        (
            "short.py",
            "class Mine:\n    def rollout(self): ...",
            "lacks settings_type, name, resume, needs_sandbox, stop_strings, system_prompt, num_tasks, task, "
            "prompt, score ",
        ),
        (
            "plain.py",
            MINE.replace("settings_type = Settings", "settings_type = dict"),
            "settings_type must be a dataclass",
        ),
        (
            "unread.py",
            MINE.replace("size: int", "size: Sequence[int]"),
            "annotations that can be read: name 'Sequence' is not defined",
        ),
        ("odd.py", MINE.replace("size: int", "size: bytes"), "types that TOML has, not <class 'bytes'>"),
        ("named.py:Other", MINE, "no class Other"),
        (
            "waits.py",
            MINE.replace("async def score", "def score"),
            r"score must be async.* Add to the class: async def score\(self, task, outcome, sandbox\)",
        ),
        (
            "fewer.py",
            MINE.replace("task, outcome, sandbox", "task, outcome"),
            r"score cannot be called .* Write it as: async def score\(self, task, outcome, sandbox\)",
        ),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text)
    with pytest.raises(EnvironmentSetupError, match=words):
        build(str(tmp_path / name))


ATTRIBUTES = {
    "settings_type": "settings_type = Settings",
    "name": 'name = "mine"',
    "resume": 'resume = "restart"',
    "needs_sandbox": "needs_sandbox = False",
    "stop_strings": "stop_strings = ()",
    "system_prompt": "system_prompt = None",
}


@pytest.mark.parametrize("part", ATTRIBUTES)
def test_what_an_environment_lacks_is_named_with_how_to_write_it(tmp_path, part):
    file = tmp_path / "lacks.py"
    text = MINE.replace(f"    {ATTRIBUTES[part]}\n", "")
    assert text != MINE
    file.write_text(text)
    with pytest.raises(EnvironmentSetupError) as caught:
        build(str(file))
    assert caught.value.rule == f"the environment lacks {part}"
    assert ATTRIBUTES[part] in caught.value.remedy
    inherits = "from headway.core.protocols import Environment\n"
    file = tmp_path / "inherits.py"
    file.write_text(
        text.replace("class Mine:", "class Mine(Environment):").replace("from dat", f"{inherits}from dat")
    )
    with pytest.raises(EnvironmentSetupError, match=f"lacks {part} "):
        build(str(file))


def test_a_constructor_may_set_what_the_class_announces(tmp_path):
    text = MINE.replace("system_prompt = None", "system_prompt: str")
    (tmp_path / "promises.py").write_text(text)
    with pytest.raises(EnvironmentSetupError, match="lacks system_prompt "):
        build(str(tmp_path / "promises.py"))
    (tmp_path / "keeps.py").write_text(
        text.replace("self.size =", "self.system_prompt = 'Add.'; self.size =")
    )
    assert build(str(tmp_path / "keeps.py")).system_prompt == "Add."


def test_a_module_that_cannot_be_imported_says_why():
    with pytest.raises(
        EnvironmentSetupError, match="no_such_module_here raised ModuleNotFoundError: No module"
    ):
        build("no_such_module_here:Mine")


def test_the_split_is_a_quarter():
    share = sum(split_of("x", (number,)) == "eval" for number in range(4000)) / 4000
    assert 0.2 < share < 0.3
