"""mini-swe-agent, as PyPI has it, mends a program in a sandbox; what the policy said is trained."""

import json
from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.environments.registry import build
from headway.environments.trial import try_once
from headway.gateway.server import Gateway
from headway.renderers.chat import Renderer
from headway.runtime.environment_worker import generation_limits, host_settings
from headway.sandbox.pools import make_pool
from tests.unit.gateway_parts import saying
from tests.unit.rollout_parts import write_tokenizer

pytestmark = [pytest.mark.examples, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "cat shop.py",
    "sed -i 's/(1 + discount)/(1 - discount)/; s/min(prices)/min(prices, default=None)/' shop.py",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)


async def test_it_mends_a_program(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = ROOT / "examples" / "mini_swe_agent" / "mini_swe_agent.toml"
    config = load_config(path, ["generator.max_context_tokens=16384"])
    write_tokenizer(tmp_path / "model")
    renderer = Renderer(tmp_path / "model")
    calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in COMMANDS]
    engine = saying(renderer, *(f"So:\n<tool_call>\n{call}\n</tool_call>" for call in calls), context=16384)
    async with Gateway(config.gateway, name="mini").serving() as gateway:
        trial = await try_once(
            build("harness", config.environment.args), engine, renderer, make_pool(config.sandbox, "mini"),
            generation_limits(config), settings=host_settings(config), timeout_s=600, server=gateway,
        )  # fmt: skip
    assert trial.failure == ""
    assert trial.score.reward == 1.0, (trial.score, trial.outcome)
    assert trial.outcome["rc"] == 0
    answers = [message for message in trial.transcript if message["role"] == "assistant"]
    assert len(answers) == 3
