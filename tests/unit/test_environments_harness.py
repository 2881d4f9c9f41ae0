"""A program plays the rollout in its sandbox, and a hidden test scores what it left."""

import json

import pytest

from headway.core.errors import EnvironmentSetupError, UserError
from headway.core.events import SandboxWanted, ToolEnded
from headway.environments.generation import GenerationLimits
from headway.environments.lease import SandboxLease
from headway.environments.registry import build
from headway.environments.trial import try_once
from headway.gateway.server import Gateway
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.gateway_parts import saying

AGENT = """
import json, os, sys, time, urllib.request
def ask(text):
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]
"""


@pytest.fixture
def tried(tmp_path, renderer):
    """Run one rollout of a task."""

    async def run(agent, engine, task=None, **settings):
        tasks = tmp_path / "tasks.jsonl"
        row = {"prompt": "say it", "files": {"agent.py": AGENT + agent}, "test": "grep -qx one answer.txt"}
        tasks.write_text(json.dumps(row | (task or {})) + "\n")
        settings = {"tasks": str(tasks), "command": ("python3", "agent.py", "{prompt}")} | settings
        provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))
        async with Gateway(name=str(tmp_path)).serving() as gateway:
            environment, limits = build("harness", settings), GenerationLimits(64, 512)
            return await try_once(environment, engine, renderer, provider, limits, server=gateway)

    return run


@pytest.mark.parametrize(("answer", "reward"), [("one", 1.0), ("two", 0.0)])
async def test_what_the_program_left_is_scored(tried, renderer, answer, reward):
    agent = "open('answer.txt', 'w').write(ask(sys.argv[1]) + '\\n')"
    trial = await tried(agent, saying(renderer, answer))
    assert trial.failure == ""
    assert trial.score.reward == reward
    assert [message["content"] for message in trial.transcript] == ["say it", answer]
    (ended,) = [event for event in trial.events if isinstance(event, ToolEnded)]
    assert (ended.cause, ended.turn) == ("exit", 0)


async def test_hidden_files_replace_what_the_program_left(tried, renderer):
    agent = "ask('x'); open('test.sh', 'w').write('exit 0')"
    task = {"test": ["sh", "test.sh"], "test_files": {"test.sh": "exit 1"}}
    trial = await tried(agent, saying(renderer, "one"), task)
    assert trial.score.reward == 0.0


async def test_a_program_that_asks_nothing_is_a_failure_and_no_reward(tried, renderer):
    trial = await tried("sys.exit('no model here')", saying(renderer, "one"))
    assert trial.score is None
    assert trial.failure.startswith("environment: ")
    assert "no model here" in trial.failure


async def test_the_reasons_hold_the_last_words_of_a_program_that_fell_over(tried, renderer):
    trial = await tried("ask('x'); sys.exit('no such thing')", saying(renderer, "one"))
    assert trial.score.reward == 0.0
    assert trial.score.reasons[1] == "the program ended by exit, rc 1, saying 'no such thing'"


async def test_a_program_that_does_not_end_is_ended_and_what_it_left_is_scored(tried, renderer):
    agent = "open('answer.txt', 'w').write(ask('x')); time.sleep(600)"
    trial = await tried(agent, saying(renderer, "one"), timeout_s=3.0)
    assert trial.score.reward == 1.0
    assert trial.outcome["cause"] == "wall"
    assert trial.outcome["rc"] is None


async def test_the_time_of_answers_is_no_time_of_the_tool(tmp_path):
    events, answered = [], iter((5.0, 1005.0))
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))
    lease = SandboxLease("r1.1", "r1", 1, "rollout", provider, "run", events.append)
    lease.answering_s = lambda: next(answered)

    def told(event):
        events.append(event)
        if isinstance(event, SandboxWanted):
            lease.grant()

    lease._emit = told
    await lease.exec(["true"])
    await lease.release()
    (ended,) = [event for event in events if isinstance(event, ToolEnded)]
    assert ended.duration_s == 0.0


WRONG = {
    "no prompt": ({"prompt": ""}, "must have a prompt"),
    "another key": ({"prompts": "x"}, "'prompts'"),
    "another type": ({"level": "1"}, "level"),
    "no text": ({"files": {"a": 1}}, "texts in files"),
    "no test": ({"test": ""}, "needs a test"),
    "true as a level": ({"level": True}, "level"),
    "no words": ({"test": ["sh", 1]}, "must have words in"),
    "a file elsewhere": ({"files": {"../a": "x"}}, "below /work"),
    "a file without a name": ({"files": {"": "x"}}, "below /work"),
    "a hidden file elsewhere": ({"test_files": {"/etc/a": "x"}}, "below /work"),
    "half a character": ({"prompt": "\ud800"}, "half of a character"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_a_task_that_is_wrong_is_named(tmp_path, change, words):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"prompt": "x", "test": "true"} | change))
    with pytest.raises(EnvironmentSetupError, match=words) as caught:
        build("harness", {"tasks": str(path), "command": ("true",)})
    assert caught.value.key.startswith("environment.args.te" if "test" in words else "environment.args.tasks")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000, r"line 1 .* not valid JSON"),
        (b"[1]", r"line 1 .* a JSON object"),
    ],
)
def test_a_file_of_tasks_that_is_none_is_named(tmp_path, data, words):
    (tmp_path / "tasks.jsonl").write_bytes(data)
    with pytest.raises(UserError, match=words):
        build("harness", {"tasks": str(tmp_path / "tasks.jsonl"), "command": ("true",)})


def test_tasks_are_read_behind_a_mark_of_bytes_and_with_separators_in_texts(tmp_path):
    row = json.dumps({"prompt": "a\u2028b", "test": "true"}, ensure_ascii=False)
    (tmp_path / "tasks.jsonl").write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\r\n")
    environment = build("harness", {"tasks": str(tmp_path / "tasks.jsonl"), "command": ("true",)})
    assert environment.task("train", 0, None).payload["prompt"] == "a\u2028b"


def test_a_folder_that_is_not_there_is_named_before_anything_runs(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "x", "test": "true"}))
    with pytest.raises(EnvironmentSetupError, match=r"environment\.args\.files"):
        build("harness", {"tasks": str(tmp_path / "tasks.jsonl"), "command": ("true",), "files": "gone"})


@pytest.mark.parametrize(
    ("agent", "settings", "words"),
    [
        ("ask('x')", {"collect": "answer.txt"}, "left no answer.txt"),
        ("ask('x'); open('big', 'wb').truncate(0) or open('big', 'wb').write(b'x' * (3 << 20))",
         {"max_collected_mb": 2}, "more than 2 MiB"),
    ],
)  # fmt: skip
async def test_a_program_that_leaves_nothing_or_too_much_has_0_and_no_failure(
    tried, renderer, agent, settings, words
):
    trial = await tried(agent, saying(renderer, "one"), **settings)
    assert trial.failure == ""
    assert trial.score.reward == 0.0
    assert words in str(trial.score.reasons)


IN_THE_WAY = {
    "a link": "os.symlink('/etc', 'tests')",
    "a link to nothing": "os.symlink('gone', 'tests')",
    "a file": "open('tests', 'w').write('x')",
    "a pipe": "os.mkfifo('tests')",
    "a folder in its place": "os.makedirs('tests/deep/test.sh/within')",
    "a link in its place": "os.makedirs('tests/deep'); os.symlink('/bin/true', 'tests/deep/test.sh')",
}


@pytest.mark.parametrize("agent", IN_THE_WAY.values(), ids=IN_THE_WAY)
async def test_what_stands_in_the_way_of_hidden_files_is_taken_away(tried, renderer, agent):
    file = "tests/deep/test.sh"
    task = {"test": ["sh", file], "test_files": {file: "grep -qx one answer.txt"}}
    agent += "; open('answer.txt', 'w').write(ask(sys.argv[1]) + '\\n')"
    assert (await tried(agent, saying(renderer, "one"), task)).score.reward == 1.0
    assert (await tried(agent, saying(renderer, "two"), task)).score.reward == 0.0


LEFT = {
    "deep folders": "for _ in range(200): os.mkdir('d'); os.chdir('d')",
    "more files than a sandbox may have": "for at in range(1500): open(str(at), 'w')",
}


@pytest.mark.parametrize("agent", LEFT.values(), ids=LEFT)
async def test_what_cannot_pass_from_sandbox_to_sandbox_is_worth_0(tried, renderer, agent):
    trial = await tried(f"ask('x')\n{agent}", saying(renderer, "one"))
    assert trial.failure == ""
    assert trial.score.reward == 0.0


@pytest.mark.parametrize(
    "word",
    ["{secret}", "{", "{0}", "{}", "{prompt!z}", "{prompt!r}", "{prompt:>10}", "{prompt:{id}}", "{prompt.x}"],
)
def test_braces_that_stand_for_nothing_are_refused(tmp_path, word):
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "x", "test": "true"}))
    with pytest.raises(EnvironmentSetupError, match="braces"):
        build("harness", {"tasks": str(tmp_path / "tasks.jsonl"), "command": ("true", word)})
