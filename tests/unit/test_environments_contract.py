"""What `headway env check` finds, in environments that break one thing each; and what `env new` writes."""
# ruff: noqa: E501 - a row a line

import asyncio
import json
import textwrap

import pytest

from headway.cli.main import main
from headway.core.errors import EnvironmentSetupError, UserError
from headway.environments import registry
from headway.environments.contract import assert_contract, check_environment
from headway.environments.registry import build, installed, names_and_summaries
from headway.environments.scripted import ScriptedChat, example_of
from headway.environments.skeleton import write_skeleton

WHOLE = '''
import itertools, random, time
from dataclasses import dataclass
from headway.core.records import Reward
from headway.environments.own import OwnEnvironment

COUNT = itertools.count()

@dataclass(frozen=True)
class Settings:
    largest: int = 999
    unused: int = 1

class Mine(OwnEnvironment):
    """Mine."""
    settings_type = Settings
    resume = "replay"

    def problem(self, rng, level):
        a, b = rng.randint(500, self.settings.largest + self.settings.unused), rng.randint(500, 999)
        return {"question": f"{a}+{b}=", "answer": a + b}
'''


def changed(tmp_path, old="", new="", more=""):
    assert old in WHOLE
    file = tmp_path / "mine.py"
    file.write_text(WHOLE.replace(old, new) + textwrap.indent(textwrap.dedent(more), "    "))
    return str(file)


def judge(name, **kwargs):
    return {one.what: one for one in asyncio.run(check_environment(name, **kwargs))}


def test_levels_that_are_a_number_are_named(tmp_path):
    with pytest.raises(EnvironmentSetupError, match=r"levels of Mine must be a tuple .* \(got 2\)"):
        build(changed(tmp_path, more="levels = 2")).task("train", 0, None)


def test_an_environment_that_keeps_the_contract(tmp_path):
    found = judge(changed(tmp_path))
    assert {one.level for one in found.values()} == {"ok"}
    assert found["rewards"].text == "16 rewards are finite, from 0 to 1"
    assert found["leak"].text == "no prompt of 64 says its answer"
    assert found["resume"].text == "run again with the same answers, rollouts ask the same"
    assert list(found) == [
        "time", "payload", "determinism", "processes", "splits", "rewards", "answers", "resume", "leak",
        "settings",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "old", "new", "more", "level", "words"),
    [
        ("payload", '"answer": a + b', '"answer": (a, b)', "", "error", "no longer the same after JSON"),
        ("payload", '"answer": a + b', '"answer": {a}', "", "error", "JSON values only"),
        ("determinism", "rng.randint(500, 999)", "random.randint(500, 999)", "", "error", "asked for again"),
        ("processes", '"question": f"', '"question": f"{hash(str(a))} ', "", "error", "differ in another process"),
        ("splits", 'f"{a}+{b}="', '"always the same"', "", "error", "held-out problems are posed in training"),
        ("leak", 'f"{a}+{b}="', 'f"{a}+{b}={a + b}"', "", "error", "says the answer of 64 of 64"),
        ("settings", " + self.settings.unused", "", "", "warning", "unused"),
        ("rewards", "", "", "def reward(self, task, outcome): return 50", "warning", "from 50 to 50"),
        ("answers", "", "", "def reward(self, task, outcome): return 0.5", "warning", "like nonsense in 4 of 4"),
        ("rollouts", "", "", "def reward(self, task, outcome): return float('nan')", "error", "finite"),
        ("rollouts", "", "", "def reward(self, task, outcome): return 1 / 0", "error", "ZeroDivisionError"),
        ("rollouts", "", "", "async def score(self, t, o, s): return 1.0", "error", "return a Reward, not float"),
        ("rollouts", "", "", "async def rollout(self, t, c, s): return __import__('headway.core.protocols').core.protocols.Outcome({})", "error", "at least once"),
        ("rollouts", "", "", "async def rollout(self, t, chat, sandbox): await sandbox.exec(['ls'])", "error", "declares needs_sandbox = False"),
        ("rollouts", "", "", "async def rollout(self, t, chat, s):\n    while True: await chat.say(self.prompt(t))", "error", "must end"),
        ("resume", "", "", "def tools(self, task, state, sandbox):\n    def tick() -> int: return next(COUNT)\n    return [tick]", "error", 'resume = "replay" is not true'),
        ("time", "def problem(self, rng, level):", "def problem(self, rng, level):\n        time.sleep(0.06)", "num_eval = 1", "warning", "no other rollout"),
    ],
)  # fmt: skip
def test_what_is_broken_is_found(tmp_path, what, old, new, more, level, words, monkeypatch):
    monkeypatch.setattr("headway.environments.contract.NUM_TASKS", 64 if what != "time" else 4)
    found = judge(changed(tmp_path, old, new, more), elsewhere=what == "processes")
    assert found[what].level == level
    assert words in found[what].text + found[what].remedy


def test_a_broken_contract_fails_a_test_of_ones_own(tmp_path):
    with pytest.raises(AssertionError, match="splits: 1 held-out problems are posed"):
        assert_contract(changed(tmp_path, 'f"{a}+{b}="', '"always"'))


def test_a_broken_tool_does_not_make_tasks_that_differ_by_what_it_hides_overlap(tmp_path):
    """The same words pose other problems where a tool has the rest; a rollout that fails shows no tools."""
    more = """
    def question(self, task): return "what does the tool say?"
    def tools(self, task, state, sandbox):
        def look() -> str:
            "Look."
            return task.payload["question"]
        return [look]
    """
    assert judge(changed(tmp_path, more=more), elsewhere=False)["splits"].level == "ok"
    (tmp_path / "broken").mkdir()
    broken = more.replace("def look()", "1 / 0\n        def look()")
    found = judge(changed(tmp_path / "broken", more=broken), elsewhere=False)
    assert "ZeroDivisionError" in found["rollouts"].text
    assert found["splits"].level == "ok"


@pytest.mark.parametrize(
    ("returned", "level"),
    [("__import__('numpy').float32(1)", "ok"), ("(True, 'why')", "ok"), ("'1'", "error"), ("None", "error")],
)
def test_what_reward_may_return_is_what_any_reward_function_may(tmp_path, returned, level):
    found = judge(
        changed(tmp_path, more=f"def reward(self, task, outcome): return {returned}"), elsewhere=False
    )
    assert found["rewards" if level == "ok" else "rollouts"].level == level


def test_no_tasks_are_an_error(tmp_path):
    with pytest.raises(EnvironmentSetupError, match="split train must have tasks"):
        judge(changed(tmp_path, more="def num_tasks(self, split): return 0"))


def test_an_environment_with_a_sandbox_is_not_run_without_one(tmp_path):
    found = judge(changed(tmp_path, more="needs_sandbox = True"), elsewhere=False)
    assert found["rollouts"].text == "not run: it needs a sandbox"


async def test_the_script_calls_each_tool_with_arguments_that_fit():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
            "b": {"enum": ["x", "y"]},
            "c": {"type": "number"},
            "d": {},
        },
        "required": ["a", "b", "d"],
    }
    assert example_of(schema) == {"a": [True], "b": "x", "d": "1"}
    assert ScriptedChat("x", calls_tools=False).shown == "\n"


def test_the_commands_write_and_check_a_skeleton(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["env", "new", "my-game"]) == 0
    assert "next: headway env check my-game/my_game.py" in capsys.readouterr().out
    assert main(["env", "check", "my-game/my_game.py", "--json", "largest=99"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["level"] for one in told["findings"]} == {"ok"}
    assert main(["env", "new", "my-game"]) == 2
    assert "is there already" in capsys.readouterr().err
    (tmp_path / "unused.py").write_text(WHOLE.replace(" + self.settings.unused", ""))
    assert main(["env", "check", "unused.py", "--strict"]) == 2


def test_the_skeletons_own_test_passes(tmp_path):
    file, config, test = write_skeleton("other", tmp_path)
    scope = {"__name__": "t", "__file__": str(test)}
    exec(compile(test.read_text(), str(test), "exec"), scope)
    scope["test_it_keeps_the_contract"]()
    scope["test_only_the_right_answer_is_rewarded"]()
    assert 'name = "other.py"' in config.read_text()
    assert build(str(file)).name == "other"


@pytest.mark.parametrize("name", ["My", "1st", "arithmetic", "class", "a b", ""])
def test_names_that_cannot_be_a_module_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="an environment's name"):
        write_skeleton(name, tmp_path)


def test_an_installed_package_offers_environments_by_entry_points(tmp_path, monkeypatch):
    folder = tmp_path / "bazaar_pack-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: bazaar-pack\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[headway.environments]\nmine = bazaar_pack:Mine\ngone = bazaar_pack:Gone\narithmetic = bazaar_pack:Mine\n"
    )
    (tmp_path / "bazaar_pack.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    try:
        assert build("mine").name == "mine"
        assert type(build("arithmetic")).__module__ == "headway.environments.arithmetic"
        named = dict(names_and_summaries())
        assert named["mine"] == "Mine."
        assert named["gone"].startswith("cannot be used: ")
        with pytest.raises(EnvironmentSetupError, match="Did you mean mine"):
            build("mime")
    finally:
        installed.cache_clear()
        assert registry.BUILT_IN


def test_an_own_environment_is_named_after_its_class_and_scores_a_number(tmp_path):
    environment = build(changed(tmp_path))
    assert environment.name == "mine"
    task = environment.task("train", 3, None)
    asked = asyncio.run(
        environment.rollout(task, ScriptedChat(str(task.payload["answer"]), calls_tools=True), None)
    )
    assert asked.data == {
        "answer": str(task.payload["answer"]), "state": {}, "ended": "answer", "num_calls": 0, "num_refused": 0,
    }  # fmt: skip
    reward = asyncio.run(environment.score(task, asked, None))
    assert (reward.score, reward.metrics) == (1.0, {"num_calls": 0.0, "num_refused": 0.0})
