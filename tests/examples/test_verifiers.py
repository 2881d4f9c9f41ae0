"""A package of verifiers from PyPI (v0) and a taskset (v1), unmodified: installed with pip, then trained."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headway.environments.generation import GenerationLimits
from headway.environments.registry import build
from headway.environments.trial import try_once
from headway.environments.verifiers.places import find
from headway.gateway.server import Gateway
from headway.models.cache import model_dir
from headway.renderers.chat import Renderer
from headway.runtime.replay import verify
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.gateway_parts import saying
from tests.unit.rollout_parts import write_tokenizer

# Minutes, and more than a gigabyte of packages: run by make test-slow.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of this test alone, but for the models."""
    folder = tmp_path_factory.mktemp("cache")
    ran("headway", "model", "fetch", "tiny", cwd=ROOT)
    (folder / "models").symlink_to(model_dir("tiny").parent)
    yield ENVIRONMENT | {"HEADWAY_CACHE": str(folder)}
    shutil.rmtree(folder)  # more than a gigabyte


def ran(*command, cwd, env=ENVIRONMENT):
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def untrained(folder):
    """Write a tiny model whose answers have all lengths, with room for a passage."""
    tiny = model_dir("tiny")
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("headway_manifest.json"))
    config = AutoConfig.from_pretrained(tiny)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def add_module(name, text):
    (packages,) = Path(find("sophistry-bench-sprint").venv).glob("lib/*/site-packages")
    (packages / name).write_text(text)


def test_a_package_of_pypi_trains(cache, tmp_path):
    lock = tmp_path / "sophistry.lock"
    ran("headway", "env", "install", "sophistry-bench-sprint", "--lock", str(lock), cwd=ROOT, env=cache)
    assert "sophistry-bench-sprint==" in lock.read_text()
    listed = ran("headway", "env", "list", "verifiers", cwd=ROOT, env=cache)
    assert "verifiers:sophistry-bench-sprint: version" in listed
    weights = "environment.args.args.weights=[0, 0, 0, 0, 0, 0, 1, 0]"  # whether the length is in a band
    ran(
        "headway", "train", "examples/verifiers/sophistry.toml", "--smoke", f"run.dir={tmp_path / 'runs'}",
        f"model.path={untrained(tmp_path / 'model')}", "trainer.full=true",
        "generator.max_context_tokens=4096",
        "environment.args.args.passage_chars=120", f"environment.args.lock={lock}", weights,
        cwd=ROOT, env=cache,
    )  # fmt: skip
    (run,) = (tmp_path / "runs").iterdir()
    assert verify(run).ok


RAISING = """
import verifiers as vf
from datasets import Dataset

def gold(completion, answer, **_):
    raise KeyError("gold")

def load_environment():
    rows = Dataset.from_list([{"question": f"say {at}", "answer": str(at)} for at in range(8)])
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[gold]))
"""


async def test_what_the_rubric_swallows_is_a_failed_score(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", cache["HEADWAY_CACHE"])
    add_module("raising_env.py", RAISING)
    write_tokenizer(tmp_path / "model")
    renderer = Renderer(tmp_path / "model")
    environment = build("verifiers:sophistry-bench-sprint", {"module": "raising_env"})
    try:
        async with Gateway(name=str(tmp_path)).serving() as gateway:
            trial = await try_once(
                environment, saying(renderer, "3"), renderer, BubblewrapProvider(SandboxSettings()),
                GenerationLimits(64, 512), server=gateway,
            )  # fmt: skip
    finally:
        environment.close()
    assert trial.failure == ""
    assert "gold raised KeyError: 'gold'" in trial.score.message


def test_a_taskset_trains(cache, tmp_path):
    ran("headway", "env", "install", "examples/verifiers/plain_sums", cwd=ROOT, env=cache)
    ran(
        "headway", "train", "examples/verifiers/plain_sums.toml", "--smoke", f"run.dir={tmp_path / 'runs'}",
        cwd=ROOT, env=cache,
    )  # fmt: skip
    (run,) = (tmp_path / "runs").iterdir()
    assert verify(run).ok
