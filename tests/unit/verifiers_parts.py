"""A package of verifiers and as much of the library as it uses, in place of a virtual environment."""

import json
import sys
from dataclasses import asdict

from headway.environments.verifiers.places import Installed

OPENAI = """
import asyncio, json, urllib.request
class AsyncOpenAI:
    def __init__(self, base_url, api_key, max_retries, timeout):
        self.base_url, self.key = base_url, api_key
    async def __aenter__(self):
        return self
    async def __aexit__(self, *_):
        pass
    def send(self, body):
        headers = {"Authorization": "Bearer " + self.key}
        url = self.base_url + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)
    async def ask(self, **body):
        return await asyncio.to_thread(self.send, body)
"""
CLIENTS = """
class OpenAIChatCompletionsClient:
    def __init__(self, native):
        self.native = native
    async def get_response(self, messages, model, sampling):
        body = {**sampling, **sampling.get("extra_body", {})}
        body.pop("extra_body", None)
        return await self.native.ask(model=model, messages=messages, **body)
"""
RUBRIC = """
import inspect
class Rubric:
    def __init__(self, funcs, weights):
        self.funcs, self.weights = funcs, weights
    async def _call_individual_reward_func(self, func, state):
        allowed = {name: value for name, value in state.items() if name in inspect.signature(func).parameters}
        try:
            value = func(**allowed)
            return float(await value if inspect.isawaitable(value) else value)
        except Exception:
            return 0.0
    async def score_rollout(self, state):
        scores = [await self._call_individual_reward_func(func, state) for func in self.funcs]
        state["reward"] = sum(score * weight for score, weight in zip(scores, self.weights))
        state["metrics"] = {func.__name__: score for func, score in zip(self.funcs, scores)}
    async def cleanup(self, state):
        pass
"""
PACKAGE = """
import os, subprocess, sys, time
from verifiers.rubrics.rubric import Rubric

calls = {}

class Environment:
    def __init__(self, kind, rows, turns):
        self.kind, self.turns = kind, turns
        self.rows = [{"prompt": [{"role": "user", "content": f"say {at}"}], "answer": str(at)}
                     for at in range(rows)]
        if kind.startswith("serves "):  # a tool server in a session of its own
            server = subprocess.Popen(["sleep", "600"], start_new_session=True)
            with open(kind.removeprefix("serves "), "w") as file:
                file.write(str(server.pid))
        self.rubric = Rubric([self.right, self.length], [1.0, 0.0])
    def build_dataset(self):
        return self.rows
    def build_eval_dataset(self):
        return None
    async def right(self, completion, answer):
        calls["right"] = calls.get("right", 0) + 1
        if self.kind == "raises" or (self.kind == "raises once" and calls["right"] == 1):
            raise KeyError("gold")
        if self.kind == "not finite":
            return float("nan")
        return completion == answer
    def length(self, completion):
        if self.kind == "metric raises":
            raise KeyError("length")
        return len(completion)
    async def rollout(self, input, client, model, sampling_args):
        if self.kind == "dies":
            print("out of memory, nearly", file=sys.stderr, flush=True)
            os._exit(3)
        if self.kind == "stuck":
            print("stuck now", file=sys.stderr, flush=True)
            time.sleep(600)
        if self.kind == "error":
            return {"trajectory": [], "error": RuntimeError("no tool")}
        messages, trajectory = list(input["prompt"]), []
        for _ in range(self.turns):
            answer = await client.get_response(messages, model, sampling_args)
            choice = answer["choices"][0]
            said = choice["message"]["content"]
            tokens = {"completion_ids": choice["token_ids"]}
            trajectory.append({"tokens": None if self.kind == "no ids" else tokens})
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "again"}]
        if self.kind == "hides a turn":
            trajectory.pop()
        if self.kind == "other ids":
            trajectory[0]["tokens"]["completion_ids"] = [1, 2, 3]
        return {"trajectory": trajectory, "completion": said, "answer": input["answer"],
                "stop_condition": "max_turns_reached"}

def load_environment(kind="", rows=8, turns=1):
    print("loading")  # what a package prints is no answer
    return Environment(kind, rows, turns)
"""


def install_fake(folder, monkeypatch):
    """Make a package `fake-env` known in a cache of its own."""
    monkeypatch.setenv("HEADWAY_CACHE", str(folder))
    root = folder / "environments" / "venvs" / "fake"
    files = {
        "openai.py": OPENAI,
        "verifiers/__init__.py": '__version__ = "0.3.9"',
        "verifiers/clients.py": CLIENTS,
        "verifiers/rubrics/__init__.py": "",
        "verifiers/rubrics/rubric.py": RUBRIC,
        "fake_env.py": PACKAGE,
    }
    for name, text in files.items():
        path = root / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    python = root / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={root}/lib exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    lock = ("fake-env==1.0", "verifiers==0.3.9")
    one = Installed("fake-env", "1.0", "0.3.9", "3.11", "fake-env==1.0", str(root), lock)
    (folder / "environments" / "fake-env.json").write_text(json.dumps(asdict(one)))
    return one
