"""A package of verifiers from PyPI (v0) and tasksets (v1), unmodified: installed with pip, then trained."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headway.environments.generation import GenerationLimits
from headway.environments.registry import build
from headway.environments.trial import try_once
from headway.environments.verifiers.lock import has_hash, read_lock
from headway.environments.verifiers.places import find
from headway.gateway.server import Gateway
from headway.models.cache import model_dir
from headway.renderers.chat import Renderer
from headway.runtime.replay import verify
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.gateway_parts import saying
from tests.unit.rollout_parts import write_tokenizer

# Their packages come over the network, in the background: see conftest.py.
pytestmark = [pytest.mark.examples, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def v0(installs, cache, monkeypatch):
    installs.installed("v0")
    monkeypatch.setenv("HEADWAY_CACHE", cache["HEADWAY_CACHE"])
    return cache


@pytest.fixture
def v1(installs, cache, monkeypatch):
    installs.installed("v1")
    monkeypatch.setenv("HEADWAY_CACHE", cache["HEADWAY_CACHE"])
    return cache


def ran(*command, env):
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def trained(config, folder, *words, env):
    """Train two steps."""
    ran("headway", "train", f"examples/verifiers/{config}", "--smoke", f"run.dir={folder}", *words, env=env)
    (run,) = folder.iterdir()
    assert verify(run).ok


def untrained(folder):
    """Write a tiny model whose answers have all lengths, with room for a passage."""
    tiny = model_dir("tiny")
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("headway_manifest.json"))
    config = AutoConfig.from_pretrained(tiny)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def add_module(package, name, text):
    (packages,) = Path(find(package).venv).glob("lib/*/site-packages")
    (packages / f"{name}.py").write_text(text)


async def tried(package, module, text, tmp_path, *says):
    """Put a module beside an installed package and try its first task with a policy that says this."""
    add_module(package, module, text)
    write_tokenizer(tmp_path / "model")
    renderer = Renderer(tmp_path / "model")
    environment = build(f"verifiers:{package}", {"module": module})
    try:
        async with Gateway(name=str(tmp_path)).serving() as gateway:
            return await try_once(
                environment, saying(renderer, *says, context=4096), renderer,
                BubblewrapProvider(SandboxSettings()), GenerationLimits(256, 4096), server=gateway,
            )  # fmt: skip
    finally:
        environment.close()


def test_a_package_of_pypi_trains(v0, installs, tmp_path):
    lock = installs.lock("v0")
    lines = read_lock(lock)
    assert lines[0].startswith("sophistry-bench-sprint==")
    assert all(has_hash(line) for line in lines)
    assert "verifiers:sophistry-bench-sprint: version" in ran("headway", "env", "list", "verifiers", env=v0)
    weights = "environment.args.args.weights=[0, 0, 0, 0, 0, 0, 1, 0]"  # whether the length is in a band
    trained(
        "sophistry.toml", tmp_path / "runs", f"model.path={untrained(tmp_path / 'model')}",
        "trainer.full=true", "generator.max_context_tokens=4096",
        "environment.args.args.passage_chars=120", f"environment.args.lock={lock}", weights, env=v0,
    )  # fmt: skip


RAISING = """
import verifiers as vf
from datasets import Dataset

def gold(completion, answer, **_):
    raise KeyError("gold")

def load_environment():
    rows = Dataset.from_list([{"question": f"say {at}", "answer": str(at)} for at in range(8)])
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[gold]))
"""


async def test_what_the_rubric_swallows_is_a_failed_score(v0, tmp_path):
    trial = await tried("sophistry-bench-sprint", "raising_env", RAISING, tmp_path, "3")
    assert trial.failure == ""
    assert "gold raised KeyError: 'gold'" in trial.score.message


@pytest.mark.parametrize("config", ["plain_sums.toml", "tool_sums.toml"])
def test_a_taskset_trains(v1, tmp_path, config):
    trained(config, tmp_path / "runs", env=v1)


CALLED = "So:\n<tool_call>\n" + json.dumps({"name": "calculator_add", "arguments": {"left": 0, "right": 1}})
CALLED += "\n</tool_call>"
ONE_TASK = """
from tool_sums import SumData, SumTask, ToolSums as All
import verifiers.v1 as vf

class ToolSums(All):
    def load(self):
        return [SumTask(SumData(prompt="0+1=", total=1), self.config.task)] * 2

__all__ = ["ToolSums"]
"""
STREAMING = (
    ONE_TASK
    + """
from openai import AsyncOpenAI
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from contextlib import AsyncExitStack
import json

class Streaming(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False
    SUPPORTS_MCP = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        client = AsyncOpenAI(base_url=endpoint, api_key=secret)
        async with client, AsyncExitStack() as stack:
            urls = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            tools, names, servers = await connect_mcp(urls, stack)
            for _ in range(2):
                text, calls = "", {}
                asked = client.chat.completions.create(
                    model=ctx.model, messages=messages, tools=tools, stream=True)
                async for chunk in await asked:
                    for choice in chunk.choices:
                        text += choice.delta.content or ""
                        calls |= {call.index: call for call in choice.delta.tool_calls or ()}
                if not calls:
                    break
                call = {"id": calls[0].id, "type": "function", "function": dict(calls[0].function)}
                messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                result = await call_mcp(servers, names, name, arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

__all__ = ["ToolSums", "Streaming"]
"""
)
STRIPPING = (
    STREAMING
    + """
from verifiers.v1.clients.eval import EvalClient

whole = EvalClient.relay

async def relay(self, *words, **more):
    reply = await whole(self, *words, **more)
    reply.chunks = stripped(reply.chunks)
    return reply

async def stripped(events):  # as a proxy does that knows no token ids
    async for event in events:
        yield event.replace(b'"token_ids"', b'"other"')

EvalClient.relay = relay
"""
)


TALKATIVE = (
    ONE_TASK
    + """
from tool_sums import Calls

class Calculator(vf.Toolset[vf.SharedToolsetConfig, Calls]):
    @vf.tool
    async def add(self, left: int, right: int) -> str:
        self.state.num += 1
        return "7 " * 9000

ToolSums.toolsets = classmethod(lambda cls, config: [Calculator(config.tools)])

if __name__ == "__main__":
    Calculator.run()
"""
)


@pytest.mark.parametrize(("module", "text"), [("whole_env", ONE_TASK), ("streaming_env", STREAMING)])
async def test_a_tool_of_a_taskset_is_called(v1, tmp_path, module, text):
    trial = await tried("plain-sums", module, text, tmp_path, CALLED, "1")
    assert trial.failure == ""
    assert trial.score.reward == 1.0
    assert trial.score.metrics == {"right": 0.8, "used": 0.2}
    told = [message["content"] for message in trial.transcript if message["role"] == "tool"]
    assert told == ["1"]
    assert len(trial.shown["branches"]) == 1


async def test_a_streamed_answer_without_token_ids_fails_the_rollout(v1, tmp_path):
    trial = await tried("plain-sums", "stripping_env", STRIPPING, tmp_path, CALLED, "1")
    assert "those of 2 of 2 answers are missing" in trial.failure
    assert trial.score is None


async def test_a_full_context_ends_a_rollout_which_is_scored(v1, tmp_path):
    trial = await tried("plain-sums", "talkative_env", TALKATIVE, tmp_path, CALLED, "1")
    assert trial.failure == ""
    assert trial.score.metrics == {"right": 0.0, "used": 0.2}
    assert [message["role"] for message in trial.transcript] == ["user", "assistant"]
