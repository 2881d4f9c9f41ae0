"""Checks of the settings, the environment and its tasks; the command; what train runs by itself."""

import json
from array import array

import pytest

from headway.cli.main import main
from headway.config.load import load_config
from headway.core.errors import ConfigError
from headway.core.protocols import GenerateRequest, Sampling
from headway.core.records import TOKENS
from headway.renderers.chat import Renderer
from headway.runtime.preflight.checks import CHECKS, fast_part
from headway.runtime.preflight.stand_in import StandInEngine
from headway.runtime.preflight.subject import Subject
from tests.unit.preflight_parts import found, only, subject

MINE = '''
from dataclasses import dataclass
from headway.core.protocols import Outcome
from headway.core.records import Message, Reward, Task

@dataclass(frozen=True)
class Settings:
    fails_at: str = ""
    words: int = 1
    payload: str = "own"
    size: int = 20

class Mine:
    """An environment that a test wrote."""

    name, settings_type, resume, needs_sandbox = "mine", Settings, "restart", False
    stop_strings, system_prompt = (), None

    def __init__(self, settings, seed):
        self.settings = settings
        self.at("init")

    def at(self, place):
        if self.settings.fails_at == place:
            raise KeyError("gone")  # here

    def num_tasks(self, split):
        return self.settings.size

    def task(self, split, index, level):
        self.at("task")
        payloads = {"own": {"n": f"{split}{index}"}, "same": {"n": index + 3 * (split == "eval")}, "none": {}}
        return Task(f"{split}/{index}", split, 1, payloads[self.settings.payload])

    def prompt(self, task):
        self.at("prompt")
        return [Message("user", "x" * self.settings.words)]

    async def rollout(self, task, chat, sandbox):
        reply = await chat.say(self.prompt(task))
        self.at("rollout")
        return Outcome({"answer": reply.text})

    async def score(self, task, outcome, sandbox):
        self.at("score")
        return Reward(0.5, ("half",))
'''
LINE = MINE.splitlines().index('            raise KeyError("gone")  # here') + 1
ALL = ("model", "tokenizer", "chat template", "environment", "image", "sandbox", "prompts", "rollout")


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return [f"environment.name={tmp_path}/mine.py"]


def arguments(**values):
    return [f"environment.args.{name}={json.dumps(value)}" for name, value in values.items()]


def test_settings_that_act_together_are_well(checkpoint):
    assert only(found(subject(checkpoint), "settings"), "ok")


def test_a_setting_without_effect(checkpoint):
    finding = only(found(subject(checkpoint, "trainer.decay_steps=5"), "settings"), "warning")
    assert finding.place == "command line: trainer.decay_steps"
    assert finding.text == 'has no effect while trainer.schedule is "constant"'


LINEAR = "trainer.schedule=linear"


@pytest.mark.parametrize(
    ("key", "overrides", "mended"),
    [
        ("trainer.decay_steps", [LINEAR, "trainer.decay_steps=50"], [LINEAR, "trainer.decay_steps=100"]),
        ("trainer.warmup_steps", ["trainer.warmup_steps=100"], ["trainer.warmup_steps=99"]),
        ("partial.park", ["partial.park=batch", "queue.bound=0"], ["partial.park=batch", "queue.bound=1"]),
        ("partial.park", ["partial.park=batch", "queue.bound=0"],
         ["partial.park=batch", "queue.bound=0", "staleness.token=mask"]),
        ("partial.after_steps", ["partial.park=update", "partial.after_steps=3"],
         ["partial.park=update", "partial.after_steps=2"]),
        ("checkpoint.every_steps", ["guard.action=rollback", "checkpoint.every_steps=0"],
         ["guard.action=rollback", "checkpoint.every_steps=5"]),
        ("generator.max_running", ["generator.max_running=7"], ["generator.max_running=8"]),
        ("queue.max_running_rollouts", ["queue.max_running_rollouts=7"], ["queue.max_running_rollouts=8"]),
        ("environment.rollout_timeout_s", ["sandbox.wall_s=20", "environment.rollout_timeout_s=20"],
         ["sandbox.wall_s=20", "environment.rollout_timeout_s=21"]),
        ("reward.timeout_s", ["sandbox.wall_s=30"], ["sandbox.wall_s=29"]),
        ("deadlines.sandbox_s", ["sandbox.start_timeout_s=121"], ["sandbox.start_timeout_s=120"]),
    ],
)  # fmt: skip
def test_settings_that_work_against_one_another(checkpoint, key, overrides, mended):
    assert only(found(subject(checkpoint, *overrides), "settings"), "warning").key == key
    assert only(found(subject(checkpoint, *mended), "settings"), "ok")


def test_an_environment_that_builds(checkpoint, mine):
    text = only(found(subject(checkpoint, *mine), "environment"), "ok").text
    assert text == "mine has 20 train tasks; 8 eval tasks"
    assert "endless" in only(found(subject(checkpoint), "environment"), "ok").text


@pytest.mark.parametrize("place", ["init", "task"])
def test_an_environment_that_raises_is_told_with_its_line(checkpoint, mine, tmp_path, place):
    finding = only(found(subject(checkpoint, *mine, *arguments(fails_at=place)), "environment"), "error")
    assert f"KeyError: 'gone', raised at {tmp_path}/mine.py:{LINE}" in finding.text


def test_fewer_tasks_than_asked_for(checkpoint, mine):
    few = arguments(size=3)
    finding = only(found(subject(checkpoint, *mine, *few), "environment"), "warning")
    assert finding.sentence().endswith("mine has 3 eval tasks, and 8 are asked for. Use eval.num_tasks = 3")
    none = found(subject(checkpoint, *mine, *arguments(size=0)), "environment")
    assert none[0].text == "the environment mine must have train tasks"


def test_a_level_that_the_environment_does_not_have(checkpoint, tmp_path):
    (tmp_path / "mine.py").write_text(MINE.replace('self.at("task")', "assert level in (None, 1)"))
    names = [f"environment.name={tmp_path}/mine.py", "curriculum.levels=[1, 2]"]
    finding = only(found(subject(checkpoint, *names), "environment"), "error")
    assert (finding.key, "no task of level 2" in finding.text) == ("curriculum.levels", True)


def test_prompts_that_fit(checkpoint, mine):
    text = only(found(subject(checkpoint, *mine), *ALL[:-1]), "ok").text
    assert text.startswith("the longest of the first 40 has ")


def test_a_prompt_that_leaves_less_than_an_answer(checkpoint, mine):
    finding = only(found(subject(checkpoint, *mine, *arguments(words=50)), *ALL[:-1]), "warning")
    assert finding.text.startswith("40 of the first 40 prompts leave less than max_answer_tokens = 16 of 64")
    assert finding.key == "generator.max_context_tokens"


def test_a_prompt_over_the_context(checkpoint, mine):
    finding = only(found(subject(checkpoint, *mine, *arguments(words=70)), *ALL[:-1]), "error")
    assert "the prompt of train task 0 of environment mine has" in finding.text
    assert "leaves no room for an answer in a context of 64" in finding.text


def test_a_prompt_that_cannot_be_made(checkpoint, mine):
    finding = only(found(subject(checkpoint, *mine, *arguments(fails_at="prompt")), *ALL[:-1]), "error")
    assert f"mine.py:{LINE}" in finding.text


def test_splits(checkpoint, mine):
    def splits(payload):
        return found(subject(checkpoint, *mine, *arguments(payload=payload)), "environment", "splits")

    assert only(splits("own"), "ok").text == "20 train tasks are all others than the 20 eval tasks"
    assert "nobody can tell" in only(splits("none"), "ok").text
    text = only(splits("same"), "warning").text
    assert text == (
        '17 of the first 20 train tasks are eval tasks too, such as train task 3 and eval task 0: {"n": 3}'
    )
    assert only(found(subject(checkpoint), "environment", "splits"), "ok")


def test_sources_are_all_compared_and_tried(checkpoint, mine):
    sources = ["source.a.weight=1", "source.b.args.payload=same"]
    both = subject(checkpoint, *mine, *sources, *arguments(payload="same"))
    finding = only(found(both, "environment", "splits"), "warning")
    assert "train tasks of source a" in finding.text
    told = only(found(subject(checkpoint, *mine, *sources), *ALL), "ok").text
    assert told.count("mine, train task 0: scored 0.5 (half)") == 2
    assert "mine, eval task 0: scored 0.5" in told


@pytest.mark.parametrize("place", ["rollout", "score"])
def test_a_rollout_that_fails_is_told_with_its_line(checkpoint, mine, place):
    finding = only(found(subject(checkpoint, *mine, *arguments(fails_at=place)), *ALL), "error")
    assert f"KeyError: 'gone' at mine.py:{LINE}" in finding.text
    assert "train task 0" in finding.text


def test_a_rollout_with_a_real_sandbox(checkpoint, tmp_path):
    code = [
        "environment.name=python-code",
        "generator.max_context_tokens=400",
        "generator.max_answer_tokens=64",
    ]
    told = only(found(subject(checkpoint, *code, f"sandbox.directory={tmp_path}/s"), *ALL), "ok").text
    assert told.startswith("python-code, train task 0: scored ")
    assert "printed '4'" in told
    assert "No model was loaded" in told


async def test_the_longest_context_of_a_tried_rollout_has_every_answer_as_long_as_was_allowed(checkpoint):
    renderer = Renderer(checkpoint)
    engine = StandInEngine(renderer, 100)

    async def ask(session, num_prompt, max_tokens):
        prompt = array(TOKENS, range(num_prompt))
        request = GenerateRequest("r", session, "", "main", prompt, Sampling(max_tokens=max_tokens))
        (chunk,) = [chunk async for chunk in engine.generate(request)]
        return len(chunk.token_ids)

    said = await ask("a", 20, 30)
    assert engine.longest == 50
    await ask("a", 20 + said + 5, 10)  # five tokens of the environment
    assert engine.longest == 65
    await ask("b", 60, 3)
    assert engine.longest == 65
    await ask("b", 90, 30)
    assert engine.longest == 100


# --- the command


@pytest.fixture
def config(checkpoint, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        f'[model]\npath = "{checkpoint}"\n[environment]\nname = "arithmetic"\n[generator]\n'
        "max_context_tokens = 64\n"
        f'max_answer_tokens = 16\n[eval]\nnum_tasks = 8\n[run]\ndir = "{tmp_path}/runs"\n'
    )
    return file


def test_the_command_says_one_line_a_check_and_sums_up(config, capsys):
    assert main(["check", str(config), "--memory"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:21].split(maxsplit=1)[1].strip() for line in lines[: len(CHECKS)]] == [
        check.name for check in CHECKS
    ]
    assert lines[len(CHECKS)] == "Memory, estimated:"
    assert lines[-1] == "20 ok, 0 warnings, 0 errors. The run can start."
    assert not any("\x1b" in line for line in lines)
    assert not (config.parent / "runs").exists()


def test_exit_codes(config, capsys):
    idle = "trainer.decay_steps=5"
    assert main(["check", str(config), idle]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "19 ok, 1 warning, 0 errors. The run can start."
    assert main(["check", str(config), idle, "--strict"]) == 2
    assert main(["check", str(config), "generator.max_context_tokens=2000"]) == 2


def test_a_config_with_problems_shows_them_all_and_names_what_was_not_looked_at(config, capsys):
    assert main(["check", str(config), "queue.grup_size=4", "stop.steps=x"]) == 2
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == (
        "error   settings      command line: queue.grup_size: is not a setting (got 4). Did you mean "
        "queue.group_size?"
    )
    assert "stop.steps" in second
    assert "2 errors; not looked at because of these errors: files, versions" in last


def test_json(config, capsys):
    assert main(["check", str(config), "model.path=./none", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["can_start"] is False
    assert said["counts"]["error"] == 1
    assert "tokenizer" in said["not_looked_at"]
    (error,) = [one for one in said["checks"] if one["level"] == "error"]
    assert error["check"] == "model"
    assert (error["key"], error["where"], error["value"]) == ("model.path", "command line", "./none")
    assert main(["check", str(config), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sum(part["bytes"] for part in said["memory"] if part["process"] == "trainer") > 400 << 20


def test_the_fast_part_warns_aside_and_raises_every_error(checkpoint, capsys):
    assert fast_part(subject(checkpoint, "trainer.decay_steps=5")) == checkpoint
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        'warning: command line: trainer.decay_steps: has no effect while trainer.schedule is "constant". '
        "Leave it out, or change what keeps it from acting\n"
    )
    with pytest.raises(ConfigError) as caught:
        fast_part(subject(checkpoint, "generator.max_context_tokens=2000", "trainer.lora_targets=wq"))
    assert [error.key for error in caught.value.problems] == [
        "generator.max_context_tokens",
        "trainer.lora_targets",
    ]
    assert all(error.where == "command line" for error in caught.value.problems)


def test_the_fast_part_runs_no_code_of_an_environment(checkpoint, mine):
    assert fast_part(subject(checkpoint, *mine, *arguments(fails_at="init"))) == checkpoint


def test_the_place_of_a_key_is_its_line(config):
    one = Subject(load_config(config, ["generator.max_context_tokens=2000"]), config, [])
    assert found(one, "model")[0].where == f"{config}:6"


def rows(tmp_path, *prompts):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "answer": 1}) + "\n" for text in prompts))
    (tmp_path / "held.jsonl").write_text('{"prompt": "p1", "answer": 1}\n{"prompt": "new", "answer": 1}\n')
    return [
        'environment.name="dataset"',
        f"environment.args.data={path}",
        "environment.args.reward=number",
        f"environment.args.eval_data={tmp_path}/held.jsonl",
        "environment.args.shuffle=false",
    ]


def test_rows_that_repeat_one_another_or_are_held_out_are_counted_and_shown(checkpoint, tmp_path):
    given = rows(tmp_path, "p0", "p1", "p0", " p0 ", "p2")
    twice = only(found(subject(checkpoint, *given), "environment", "duplicates"), "warning")
    assert twice.text.startswith("2 of 5 train tasks repeat another: train task 2 ")
    assert f"({tmp_path}/rows.jsonl:3) asks what train task 0 asks;" in twice.text
    assert 'environment.args.duplicates = "drop"' in twice.remedy
    both = only(found(subject(checkpoint, *given), "environment", "splits"), "warning")
    assert both.text == (
        "1 of the first 5 train tasks are eval tasks too, such as train task 1 "
        f"({tmp_path}/rows.jsonl:2) and eval task 0 ({tmp_path}/held.jsonl:1): p1"
    )
    dropped = [*given, "environment.args.duplicates=drop"]
    text = only(found(subject(checkpoint, *dropped), "environment", "duplicates"), "ok").text
    assert text == "2 train tasks of dataset all differ; 2 eval tasks of dataset all differ"


def test_every_row_of_a_data_set_is_measured(checkpoint, tmp_path):
    long = [f"{n} " * 60 if n in (80, 90) else f"{n}" for n in range(100)]
    finding = only(found(subject(checkpoint, *rows(tmp_path, *long)), *ALL[:-1]), "error")
    assert "so do 2 of the 102 prompts: train task 80" in finding.text
    assert f"{tmp_path}/rows.jsonl:81" in finding.text
