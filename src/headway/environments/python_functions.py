"""The function tasks of `python-code`: families of one-line functions, and the judge of an answer.

The judge runs the model's code in a fresh sandbox with inputs only. Expected values never enter it: what the
code returned comes back as JSON and is compared here. So code that exits early, prints "ok", or rewrites the
harness around it gains nothing, short of computing the values.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.environments.tasks import Problem

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox

NUM_INPUTS = 5

# Prints nothing but one JSON list: for each input the returned value, or null with an error's name.
_HARNESS = """
import json, os, sys
job = json.loads(sys.stdin.read())
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
space = {"__name__": "answer"}
results = []
try:
    exec(compile(job["code"], "answer", "exec"), space)
    f = space["f"]
    for x in job["inputs"]:
        try:
            value = f(x)
            json.dumps(value, allow_nan=False)
            results.append({"value": value})
        except Exception as error:
            results.append({"error": type(error).__name__})
except Exception as error:
    results = [{"error": type(error).__name__}] * len(job["inputs"])
out.write(json.dumps(results))
out.flush()
"""


@dataclass(frozen=True, slots=True)
class Family:
    """Functions that differ in two numbers."""

    level: int
    words: str  # what f(x) returns; {a} and {b} are the numbers
    function: Callable[[Any, int, int], Any]
    inputs: Callable[[random.Random], Any]


def _number(rng: random.Random) -> int:
    return rng.randrange(2, 30)


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randrange(1, 50) for _ in range(rng.randrange(3, 7))]


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("abcdefgh") for _ in range(rng.randrange(3, 9)))


FAMILIES: dict[str, Family] = {
    "add": Family(1, "x plus {a}", lambda x, a, b: x + a, _number),
    "multiply": Family(1, "x times {a}", lambda x, a, b: x * a, _number),
    "subtract": Family(1, "x minus {a}", lambda x, a, b: x - a, _number),
    "linear": Family(2, "x times {a} plus {b}", lambda x, a, b: x * a + b, _number),
    "square": Family(2, "the square of x plus {a}", lambda x, a, b: x * x + a, _number),
    "remainder": Family(2, "the remainder of x divided by {a}", lambda x, a, b: x % a, _number),
    "total": Family(3, "the sum of the list x plus {a}", lambda x, a, b: sum(x) + a, _numbers),
    "largest": Family(3, "the largest number in the list x times {a}", lambda x, a, b: max(x) * a, _numbers),
    "length": Family(3, "the length of the string x plus {a}", lambda x, a, b: len(x) + a, _word),
    "repeat": Family(3, "the string x repeated {a} times", lambda x, a, b: x * a, _word),
    "backwards": Family(
        3, "the string x reversed and repeated {a} times", lambda x, a, b: x[::-1] * a, _word
    ),
}


def draw_function(rng: random.Random, level: int) -> Problem:
    """Return a function problem of a level."""
    name = rng.choice([name for name, family in FAMILIES.items() if family.level == level])
    a, b = rng.randrange(2, 10 if level == 3 else 50), rng.randrange(1, 50)
    uses_b = "{b}" in FAMILIES[name].words
    key = ("function", name, a, b) if uses_b else ("function", name, a)
    return Problem(key, level, {"kind": "function", "family": name, "a": a, "b": b})


def describe(payload: dict[str, Any]) -> str:
    """Return what f(x) returns, in words."""
    return FAMILIES[payload["family"]].words.format(a=payload["a"], b=payload["b"])


async def judge(payload: dict[str, Any], code: str, sandbox: Sandbox) -> tuple[int, str]:
    """Return (inputs that came out right, the first thing that was wrong)."""
    family = FAMILIES[payload["family"]]
    rng = random.Random(f"{payload['family']}/{payload['a']}/{payload['b']}")
    inputs = [family.inputs(rng) for _ in range(NUM_INPUTS)]
    job = json.dumps({"code": code, "inputs": inputs}).encode()
    result = await sandbox.exec(["python3", "-I", "-S", "-B", "-c", _HARNESS], stdin=job)
    answers = _answers(result.stdout)
    if result.cause != "exit" or answers is None:
        return 0, f"the code did not finish: {result.cause}"
    num_right, wrong = 0, ""
    for x, answer in zip(inputs, answers, strict=True):
        expected = family.function(x, payload["a"], payload["b"])
        value = answer.get("value")
        if type(value) is type(expected) and value == expected:
            num_right += 1
        elif not wrong:
            got = answer.get("error", repr(value)[:40])
            wrong = f"f({x!r}) should be {expected!r}, was {got}"
    return num_right, wrong


def _answers(stdout: str) -> list[dict[str, Any]] | None:
    """Return the harness's list; anything else that the code may have printed is no answer."""
    try:
        found: object = json.loads(stdout)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(cast("list[object]", found)) != NUM_INPUTS:
        return None
    items = cast("list[object]", found)
    return cast("list[dict[str, Any]]", items) if all(isinstance(item, dict) for item in items) else None
