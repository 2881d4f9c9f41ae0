"""What judges an answer to a row: verifiers by name, or the user's own function.

A verifier is pure and quick. A plain function of the user's runs in a thread, so that one that waits or
computes holds up its own score only; an async one runs in the event loop. `reward.timeout_s` bounds both; a
thread that is overdue cannot be ended and goes on.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import RewardFault, UserError
from headway.core.hooks import load_function
from headway.core.off_loop import in_thread
from headway.core.records import Reward
from headway.environments.dataset.settings import REWARD_PARAMETERS
from headway.rewards.case import as_reward
from headway.rewards.patterns import compiled, fits
from headway.rewards.verifiers import (
    contains_text,
    equals_number,
    equals_text,
    extract_python_block,
    last_choice,
    last_number,
)

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox

# Prints one JSON object: the nonce, and of each test whether it passed or what it raised. The nonce comes
# first on stdin, so that code that prints its own verdict and exits passes nothing.
_HARNESS = """
import json, os, sys
job = json.loads(sys.stdin.read())
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
nonce, tests, code = job.pop("nonce"), job.pop("tests"), job.pop("code")
space, results = {"__name__": "answer"}, []
try:
    exec(compile(code, "answer", "exec"), space)
except BaseException as error:
    results = [f"{type(error).__name__}: {error}"] * len(tests)
else:
    for test in tests:
        try:
            exec(compile(test, "test", "exec"), dict(space))
            results.append("")
        except BaseException as error:
            results.append(f"{type(error).__name__}: {error}")
out.write(json.dumps({"nonce": nonce, "results": [one[:200] for one in results]}))
out.flush()
os._exit(0)
"""


def check_answer(verifier: str, value: Any) -> None:
    """Raise UserError, without a place, when a verifier cannot use a row's right answer."""
    if verifier != "python-tests" and not isinstance(value, (str, int, float)):
        rule = "the right answer must be a text or a number"
        remedy = "Name another column (environment.args.answer), or judge it by your own function"
        raise UserError(rule, value=type(value).__name__, remedy=remedy)
    if verifier != "python-tests" and not str(value).strip():  # regex would be right always, contains never
        remedy = "Leave the row out, or judge it by your own function"
        raise UserError("the right answer must not be empty", value=value, remedy=remedy)
    if verifier == "number" and _number(value) is None:
        shown = value if len(str(value)) <= 60 else f"{str(value)[:57]}..."
        remedy = "It must be finite too: mend the row, or use another reward"
        raise UserError("the right answer must hold a number", value=shown, remedy=remedy)
    if verifier == "choice" and last_choice(str(value)) is None:
        raise UserError("the right answer must be a letter", value=value, remedy="Use another reward")
    if verifier == "regex":
        try:
            compiled(str(value))
        except ValueError as error:
            rule = f"the right answer must be a regular expression: {error}"
            raise UserError(rule, value=value, remedy='Mend it, or use reward = "contains"') from None
    if verifier == "python-tests" and not _tests(value):
        rule = "the right answer must hold tests: Python text, or a list of such"
        raise UserError(rule, value=value, remedy="Leave the row out, or name the column that has them")


def judge(verifier: str, answer: str, value: Any) -> Reward:
    """Return the reward of an answer by a verifier's name: 1 or 0."""
    match verifier:
        case "number":
            right = equals_number(answer, cast("float", _number(value)))
        case "exact":
            right = equals_text(answer, str(value))
        case "contains":
            right = contains_text(answer, str(value))
        case "choice":
            right = last_choice(answer) == last_choice(str(value))
        case "regex":
            right = fits(compiled(str(value)), answer)
        case other:
            raise ValueError(f"no such verifier: {other}")
    reason = (
        "right" if right else f"{_short(str(value))} was expected, the answer was {_short(answer.strip())}"
    )
    return Reward(float(right), (reason,))


async def run_tests(answer: str, value: Any, sandbox: Sandbox) -> Reward:
    """Return 1 when the answer's Python block passes every test in a sandbox, 0 else."""
    code, tests = extract_python_block(answer), _tests(value)
    if code is None:
        return Reward(0.0, ("the answer holds no closed ```python block",))
    nonce = secrets.token_hex(16)
    job = json.dumps({"nonce": nonce, "tests": tests, "code": code}).encode()
    done = await sandbox.exec(["python3", "-I", "-S", "-B", "-c", _HARNESS], stdin=job)
    results = _results(done.stdout, nonce, len(tests))
    if results is None:
        return Reward(0.0, (f"the code did not finish: {done.cause}",), {"tests_passed": 0.0})
    passed = results.count("")
    wrong = next((f"test {at}: {result}" for at, result in enumerate(results) if result), "every test passed")
    return Reward(float(passed == len(tests)), (wrong,), {"tests_passed": passed / len(tests)})


class OwnReward:
    """The user's function (answer, row) by its name; raises HookError when it cannot be loaded."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Callable[..., Any] = load_function(name, REWARD_PARAMETERS, may_await=True)

    async def __call__(self, answer: str, row: dict[str, Any]) -> Reward:
        """Return the reward; raises whatever the function raises, RewardFault for what is no reward."""
        function = self._function
        if iscoroutinefunction(function):
            value = await function(answer, row)
        else:
            value = await in_thread(self._name, lambda: function(answer, row), raised=RewardFault)
            if isawaitable(value):  # an async method behind a callable object
                value = await value
        return as_reward(self._name, value)


def _number(value: Any) -> float | None:
    """Return a finite number, None where there is none: nothing equals NaN, and no answer is infinite."""
    try:
        given = isinstance(value, (int, float)) and not isinstance(value, bool)
        number = float(value) if given else last_number(str(value))
    except OverflowError:
        return None
    return number if number is not None and math.isfinite(number) else None


def _tests(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [str(entry) for entry in entries]


def _results(stdout: str, nonce: str, num_tests: int) -> list[str] | None:
    try:
        found: Any = json.loads(stdout)
        results: Any = found["results"] if found["nonce"] == nonce else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    entries = cast("list[Any]", results) if isinstance(results, list) else []
    return [str(one) for one in entries] if len(entries) == num_tests else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
