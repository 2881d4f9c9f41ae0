"""The built-in environments, turn by turn, with real sandboxes."""

import pytest
from tokenizers import Tokenizer

from headway.core.events import Scored, ToolEnded
from headway.core.protocols import Outcome
from headway.core.records import Task
from headway.environments.generation import GenerationLimits
from headway.environments.python_functions import FAMILIES
from headway.environments.registry import build
from headway.environments.trial import try_once
from headway.renderers.chat import Renderer
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.rollout_parts import ScriptedEngine, write_tokenizer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return Renderer(folder)


@pytest.fixture
def provider(tmp_path):
    return BubblewrapProvider(SandboxSettings(directory=str(tmp_path), wall_s=2))


@pytest.fixture
def attempt(renderer, provider):
    """Run one rollout of the first train task with these answers."""
    tokenizer = Tokenizer.from_str(renderer._tokenizer.to_str())

    async def run(name, args, *answers):
        environment = build(name, args, 3)
        task = environment.task("train", 0, None)
        if "a" in task.payload:
            known = {"a": task.payload["a"], "b": task.payload["b"], "v": value_of(task)}
        texts = [answer.format(**known) if isinstance(answer, str) else answer(task) for answer in answers]

        def script(request):
            return tokenizer.encode(texts[int(request.request_id[-1])], add_special_tokens=False).ids

        engine = ScriptedEngine(script, decode=renderer.decode)
        limits = GenerationLimits(256, 1024)
        trial = await try_once(environment, engine, renderer, provider, limits)
        assert await provider.list({}) == []
        assert trial.failure == ""
        assert isinstance(trial.score, Scored)
        return trial

    return run


def value_of(task):
    a, b = task.payload["a"], task.payload["b"]
    return {"+": a + b, "-": a - b, "*": a * b}.get(task.payload.get("op"))


def block(code):
    return f"```python\n{code}\n```\n"


@pytest.mark.parametrize(
    ("style", "answer", "reward"),
    [
        ("bare", "{v}<|im_end|>", 1), ("bare", " {v}\n<|im_end|>", 1), ("bare", "it is {v}<|im_end|>", 0),
        ("bare", "{v}{v}<|im_end|>", 0), ("bare", "<|im_end|>", 0), ("question", "it is {v}.<|im_end|>", 1),
        ("question", "{v} or 0<|im_end|>", 0), ("question", "who knows<|im_end|>", 0),
    ],
)  # fmt: skip
async def test_arithmetic(attempt, style, answer, reward):
    trial = await attempt("arithmetic", {"style": style}, answer)
    assert trial.score.reward == reward
    assert len(trial.score.reasons) == 1
    assert [piece["kind"] for piece in trial.shown["branches"][0]["pieces"]] == ["masked", "trained"]


ONE, TWO = {"turns": 1, "operations": ["+"]}, {"turns": 2, "operations": ["+"]}


@pytest.mark.parametrize(
    ("answer", "reward", "metrics"),
    [
        (block("print({a} + {b})"), 1, {"printed": 1, "literal": 0}),
        (block("x = {a}\nx += {b}\nprint(x)"), 1, {"printed": 1, "literal": 0}),
        (block("print(sum([{a}, {b}]))"), 1, {"printed": 1, "literal": 0}),
        (block("print({v})"), 1, {"printed": 1, "literal": 1}),
        (block("x = '{v}'\nprint(x)"), 1, {"printed": 1, "literal": 1}),
        (block("print({a} * {b})"), 0, {"printed": 0, "literal": 0}),
        (block("print({v}, 'done')"), 0, {"printed": 0, "literal": 0}),
        (block("{a} + {b}"), 0, {}),
        (block("print({v})\nraise SystemExit(1)"), 0, {}),
        (block("print({v}); while True"), 0, {}),
        (block("import time\ntime.sleep(9)"), 0, {}),
        ("```python\nprint({v})<|im_end|>", 0, {}),
        ("{v}<|im_end|>", 0, {}),
    ],
)
async def test_python_code_in_one_turn_is_scored_by_what_was_printed(attempt, answer, reward, metrics):
    trial = await attempt("python-code", ONE, answer)
    assert (trial.score.reward, trial.score.metrics) == (reward, metrics)
    assert trial.score.reasons[0]


@pytest.mark.parametrize(
    ("first", "second", "reward"),
    [
        (block("print({a} + {b})"), "The result is {v}.<|im_end|>", 1.0),
        (block("print({a} + {b})"), "It is {v}, not 7<|im_end|>", 0.2),
        (block("print({a} + {b})"), "I do not know<|im_end|>", 0.2),
        (block("print({a} * {b})"), "The result is {v}.<|im_end|>", 0.8),
        (block("print({a} * {b})"), "No idea<|im_end|>", 0.0),
        (block("pass"), "The result is {v}.<|im_end|>", 0.0),
        ("The result is {v}.<|im_end|>", "The result is {v}.<|im_end|>", 0.0),
    ],
)
async def test_python_code_in_two_turns_is_scored_by_printed_and_said(attempt, first, second, reward):
    trial = await attempt("python-code", TWO, first, second)
    assert trial.score.reward == pytest.approx(reward)


async def test_the_output_comes_back_to_the_model(attempt):
    trial = await attempt("python-code", TWO, block("print({a} + {b})") + "more", "{v}<|im_end|>")
    pieces = trial.shown["branches"][0]["pieces"]
    value = value_of(trial.task)
    assert [piece["kind"] for piece in pieces] == ["masked", "trained", "masked", "trained"]
    assert pieces[1]["text"].startswith("```python\nprint(")
    assert pieces[1]["text"].endswith("\n```\n")  # generation ended at the closing fence
    assert pieces[2]["text"] == (
        f"<|im_end|>\n<|im_start|>user\n```output\n{value}\n```\nWhat is the result?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert pieces[3]["text"] == f"{value}<|im_end|>"
    assert [entry["role"] for entry in trial.transcript] == ["user", "assistant", "user", "assistant"]
    assert sum(isinstance(event, ToolEnded) for event in trial.events) == 1


async def test_a_flood_of_output_comes_back_cut(attempt):
    trial = await attempt("python-code", TWO, block("print('9' * 5000)"), "9<|im_end|>")
    assert len(trial.outcome["printed"]) == 200


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_a_right_function_passes_the_hidden_inputs(attempt, level):
    bodies = {
        "add": "x + {a}", "multiply": "x * {a}", "subtract": "x - {a}", "linear": "x * {a} + {b}",
        "square": "x ** 2 + {a}", "remainder": "x % {a}", "total": "sum(x) + {a}", "largest": "max(x) * {a}",
        "length": "len(x) + {a}", "repeat": "x * {a}", "backwards": "x[::-1] * {a}",
    }  # fmt: skip
    assert set(bodies) == set(FAMILIES)

    def right(task):
        body = bodies[task.payload["family"]].format(a=task.payload["a"], b=task.payload["b"])
        return block(f"def f(x): return {body}")

    trial = await attempt("python-code", {"kind": "function", "levels": [level]}, right)
    assert (trial.score.reward, trial.score.metrics) == (1.0, {"inputs_right": 1.0})


FORGERIES = {
    "exits early": "raise SystemExit(0)",
    "prints ok": "print('ok'); f = None",
    "prints a verdict": "import os, sys\nos.write(3, b'[true]')\nsys.exit(0)",
    "equals everything": (
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def f(x): return E(123456)"
    ),
    "breaks json": "import json\njson.dumps = lambda *a, **k: '[]'\ndef f(x): return x",
    "returns nothing": "def f(x): pass",
    "returns a bool": "def f(x): return True",
    "is not python": "def f(x:",
    "loops": "def f(x):\n    while True: pass",
    "looks for the answers": (
        "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]\n"
        "def f(x): return found[0]['expected'][x]"
    ),
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES.keys())
async def test_a_forged_function_gains_nothing(provider, code):
    environment = build("python-code", {"kind": "function"})
    task = Task("train/0", "train", 1, {"kind": "function", "family": "add", "a": 40, "b": 1})
    sandbox = await provider.create("verify", {})
    reward = await environment.score(task, Outcome({"code": code}), sandbox)
    await sandbox.terminate()
    assert reward.score == 0.0
    assert reward.reasons[0]


async def test_a_trial_of_a_rollout_that_fails_says_why(renderer, provider):
    environment = build("arithmetic")
    engine = ScriptedEngine(lambda request: [1])
    for name in ("try.0.0", "try.0.0.p1", "try.0.0.p2"):
        engine.finish_as[name] = ("lost", "the replica died")
    trial = await try_once(environment, engine, renderer, provider, GenerationLimits(8, 256))
    assert trial.score is None
    assert trial.failure.startswith("infrastructure: ")
    assert "the replica died" in trial.failure
