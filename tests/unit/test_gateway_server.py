"""Programs speak to their rollout over the OpenAI API; what they were told is what is trained."""

import asyncio
import json
import sys

import pytest

from headway.core.events import RolloutEnded, RolloutFailed, RolloutParked, TurnEnded
from headway.core.protocols import Outcome
from headway.environments.generation import GenerationLimits
from headway.gateway.server import Gateway
from headway.gateway.settings import GatewaySettings
from tests.unit.gateway_parts import asked, chat, saying, sent
from tests.unit.host_stage import opened

LIMITS = GenerationLimits(64, 512)


@pytest.fixture
def served(tmp_path, renderer):
    """Open a stage whose rollout gets an endpoint."""

    def open_stage(engine, work, settings=None, **options):
        async def rollout(chat_, sandbox):
            async with chat_.endpoint() as endpoint:
                return Outcome({"seen": await work(endpoint)})

        gateway = Gateway(settings, name=str(tmp_path))
        options = {"limits": LIMITS} | options
        return opened(tmp_path, {"replica-0": engine}, renderer, rollout, server=gateway, **options)

    return open_stage


async def ended(stage):
    stage.start()
    event = await stage.until((RolloutEnded, RolloutFailed))
    assert isinstance(event, RolloutEnded), event
    return stage.payload(event.payload), event


CLIENT = """
import openai, sys
client = openai.OpenAI()
messages = [{"role": "user", "content": "one"}]
for text in ("two", "three"):
    answer = client.chat.completions.create(model="m", messages=messages)
    messages += [answer.choices[0].message, {"role": "user", "content": text}]
stream = client.chat.completions.create(model="m", messages=messages, stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
print(client.models.list().data[0].max_model_len)
"""


async def test_an_unmodified_openai_client_drives_a_rollout_that_is_trained(served, renderer):
    pytest.importorskip("openai")

    async def work(endpoint):
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, stdout=asyncio.subprocess.PIPE,
            env={"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.key, "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        out, _ = await program.communicate()
        assert program.returncode == 0
        return out.decode().split()

    async with served(saying(renderer, "first", "second", "third"), work) as stage:
        payload, event = await ended(stage)
    assert payload.outcome["seen"] == ["third", "512"]
    assert event.num_turns == 3
    (sample,) = payload.samples
    parts = ["<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n", "first<|im_end|>"]
    parts += ["\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n", "second<|im_end|>"]
    parts += ["\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n", "third<|im_end|>"]
    lengths = [len(renderer.encode(part)) for part in parts]
    assert renderer.decode(sample.token_ids, skip_special=False) == "".join(parts)
    assert list(sample.trainable) == [at % 2 for at, length in enumerate(lengths) for _ in range(length)]
