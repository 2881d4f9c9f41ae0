"""Environments with tools through the real conversation: examples/own_tools and examples/search, scripted."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.core.events import RolloutEnded, RolloutFailed, Scored, ToolEnded
from headway.core.payload import read_payload
from headway.core.protocols import Outcome
from headway.core.records import Message
from headway.environments import trial
from headway.environments.generation import GenerationLimits
from headway.environments.http_tool import HttpTool, HttpToolSettings
from headway.environments.registry import build
from headway.environments.tools import ToolRefusal, run_tools
from headway.renderers.chat import Renderer
from tests.standins.families import write_family
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import ScriptedEngine

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMITS = GenerationLimits(max_context_tokens=4096, max_answer_tokens=256)


def called(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def played(renderer, environment, *answers):
    """Run a rollout whose answers are these, each closed; return the trial."""
    left, given = list(answers), {}

    def script(request):
        if request.request_id not in given:
            given[request.request_id] = [*renderer.encode(left.pop(0)), renderer.closing_id]
        return given[request.request_id]

    engine = ScriptedEngine(script, vocab=10_000)
    return await trial.try_once(environment, engine, renderer, None, LIMITS)


@contextmanager
def chat_service():
    """An HTTP service that says hello."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return Renderer(write_family(tmp_path_factory.mktemp("qwen"), "qwen25"))


async def test_bazaar_rewards_prices_that_were_asked_for(renderer):
    environment = build(str(EXAMPLES / "own_tools" / "bazaar.py"))
    lowest = str(environment.task("train", 0, None).payload["answer"])
    asked = called("price", stall="Ada") + called("price", stall="Bo")
    done = await played(
        renderer, environment, asked, called("price", stall="Di"), called("price", stall="Cy"), lowest
    )
    assert isinstance(done.score, Scored)
    assert done.score.reward == pytest.approx(1.0)
    assert done.outcome == {
        "answer": lowest, "state": {"asked": ["Ada", "Bo", "Cy"]}, "ended": "answer", "num_calls": 4,
        "num_refused": 1,
    }  # fmt: skip
    told = [message["content"] for message in done.transcript if message["role"] == "tool"]
    prices = environment.task("train", 0, None).payload["prices"]
    assert told == [str(prices["Ada"]), str(prices["Bo"]), "Error: there is no stall Di", str(prices["Cy"])]
    assert done.transcript[1]["tool_calls"][1] == {
        "id": "call_0_1",
        "name": "price",
        "arguments": '{"stall": "Bo"}',
    }


async def test_search_finds_the_passage_and_what_was_sampled_alone_is_trained(renderer, monkeypatch):
    payloads = []

    def kept(folder, name):
        payloads.append(read_payload(folder, name))
        return payloads[-1]

    monkeypatch.setattr(trial, "read_payload", kept)
    environment = build(str(EXAMPLES / "search" / "search.py"))
    task = environment.task("train", 0, None)
    call = called("search", query=task.payload["question"])
    done = await played(renderer, environment, call, task.payload["answer"])
    assert done.score.reward == pytest.approx(1.0)
    assert dict(done.score.metrics) == {"found": 1.0, "num_calls": 1.0}
    (found,) = [message["content"] for message in done.transcript if message["role"] == "tool"]
    assert task.payload["answer"] in found
    (sample,) = payloads[-1].samples
    trained = [token for token, counts in zip(sample.token_ids, sample.trainable, strict=True) if counts]
    closing = [renderer.closing_id]
    assert trained == [*renderer.encode(call), *closing, *renderer.encode(task.payload["answer"]), *closing]
    text = renderer.decode(sample.token_ids, skip_special=False)
    assert f"<tool_response>\n{found}\n</tool_response><|im_end|>\n<|im_start|>assistant\n" in text


async def test_calls_outside_the_sandbox_are_told_once_and_beside_its_commands(renderer, tmp_path):
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    def refused() -> str:
        raise ToolRefusal("no")

    answers = ["".join((called("slow", seconds=0.05), called("run"), called("refused"))), "done"]

    async def rollout(chat, sandbox):
        async def run() -> str:
            return (await sandbox.exec(["echo", "inside"])).stdout

        await run_tools(chat, [Message("user", "go")], [slow, run, refused, nobody])
        await sandbox.exec(["true"])
        return Outcome({})

    given = {}

    def script(request):
        text = given.setdefault(request.request_id, answers[len(given)] if len(given) < 2 else "")
        return [*renderer.encode(text), renderer.closing_id]

    engine = ScriptedEngine(script, vocab=10_000)
    with chat_service() as url:
        nobody = HttpTool(HttpToolSettings(name="nobody", url=url))
        answers[0] += called("nobody")
        async with opened(tmp_path, {"replica-0": engine}, renderer, rollout, limits=LIMITS) as stage:
            stage.start()
            ended = await stage.until((RolloutEnded, RolloutFailed))
    assert isinstance(ended, RolloutEnded), ended
    told = [event for event in stage.events if isinstance(event, ToolEnded)]
    assert [(event.call, event.where, event.cause) for event in told] == [
        (0, "host", "exit"),
        (1, "sandbox", "exit"),
        (2, "host", "error"),
        (3, "host", "exit"),
        (4, "sandbox", "exit"),
    ]
    assert [event.turn for event in told] == [0, 0, 0, 0, 1]
    assert told[0].duration_s >= 0.05
    assert ended.num_tool_calls == 5


async def test_an_answer_without_a_search_earns_nothing_for_it(renderer):
    environment = build(str(EXAMPLES / "search" / "search.py"))
    done = await played(renderer, environment, called("search", query="..."), "no idea")
    assert done.score.reward == 0.0
    assert [m["content"] for m in done.transcript if m["role"] == "tool"] == ["Nothing found."]


async def test_a_failing_tool_is_a_failed_rollout_and_no_reward(renderer, tmp_path):
    (tmp_path / "down.py").write_text(
        "from headway.core.errors import ToolError\n"
        "from headway.environments.own import OwnEnvironment\n\n\n"
        "class Down(OwnEnvironment):\n"
        '    """Down."""\n\n'
        "    def problem(self, rng, level):\n"
        '        return {"question": str(rng.random()), "answer": 1}\n\n'
        "    def tools(self, task, state, sandbox):\n"
        "        def ask() -> str:\n"
        '            raise ToolError("the service is away")\n\n'
        "        return [ask]\n"
    )
    done = await played(renderer, build(str(tmp_path / "down.py")), called("ask"))
    assert done.score is None
    assert done.failure == "infrastructure: the service is away"


@pytest.mark.parametrize("file", ["own_tools/bazaar.py", "search/search.py"])
def test_the_examples_keep_the_contract(file, capsys):
    assert main(["env", "check", str(EXAMPLES / file), "--strict"]) == 0
    assert "error" not in capsys.readouterr().out


def test_the_documented_environment_is_the_examples():
    page = (EXAMPLES.parent / "docs" / "tools.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert code in (EXAMPLES / "own_tools" / "bazaar.py").read_text()
