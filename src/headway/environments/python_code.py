"""The `python-code` environment: the model writes Python, a sandbox runs it.

Kind `output`: print the value of an expression. One turn: the score is 1 when the program printed the value.
Two turns: when the program ran and printed something, that text comes back and the model is asked for the
result; 0.2 for having printed the value and 0.8 when the last number of the reply is right. A program that
printed nothing ends the rollout with 0, so a value that was guessed without a program scores nothing. There
is no credit for form. A program that prints the bare number without computing scores too; the metric
`literal` counts those.

Kind `function`: define f(x); hidden inputs decide, in a fresh sandbox (python_functions.py). All right is 1,
anything else 0.

Levels: `output` 1 to 3, digits of the operands; `function` 1 to 3, one operation, two operations, lists and
strings.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import Problem as SettingProblem
from headway.core.settings import setting
from headway.environments.python_functions import NUM_INPUTS, describe, draw_function, judge
from headway.environments.tasks import Problem, check_level, check_position, draw_eval, draw_train, task_id
from headway.rewards.check import checked
from headway.rewards.verifiers import equals_number, extract_python_block

if TYPE_CHECKING:
    import random

LEVELS = range(1, 4)
# From easy to hard for an untrained 135M model: some give a first signal, some leave room to learn.
_WORDINGS = (
    "Print {expression} using Python.",
    "Calculate {expression} with Python.",
    "Compute {expression} in Python and print the result.",
    "What is {expression}? Write a Python program that prints it.",
    "Solve {expression} with Python.",
    "Run Python to find {expression}.",
)
_FORM = "Reply with one ```python block only."
_MAX_SHOWN = 200  # characters of output that come back to the model


@dataclass(frozen=True, slots=True)
class PythonCodeSettings:
    """Arguments of `python-code`."""

    kind: Literal["output", "function"] = setting("output", "Task: print a value, or define a function.")
    turns: int = setting(
        2, "Turns of kind `output`: 1 ends with the program, 2 asks for its result.", ge=1, le=2
    )
    levels: tuple[int, ...] = setting((2,), "Levels of the train tasks, each as likely.", ge=1, le=3)
    operations: tuple[Literal["+", "-", "*"], ...] = setting(("+", "-", "*"), "Operations of kind `output`.")
    num_eval: int = setting(64, "Held-out tasks at most; the lowest levels have fewer.", ge=1)
    code_tokens: int = setting(64, "Longest answer that holds a program, tokens.", ge=8)
    say_tokens: int = setting(24, "Longest answer that says the result, tokens.", ge=1)

    def problems(self) -> list[SettingProblem]:
        """Return rules between settings that do not hold."""
        empty = [name for name in ("levels", "operations") if not getattr(self, name)]
        return [SettingProblem(name, (), "must name at least one", "") for name in empty]


class PythonCode:
    """The model writes Python and a sandbox runs it; what was printed and said is scored."""

    name = "python-code"
    settings_type = PythonCodeSettings
    resume: Literal["replay", "snapshot", "restart"] = "replay"
    needs_sandbox = True
    stop_strings: tuple[str, ...] = ("\n```\n",)  # the closing fence
    system_prompt: str | None = None

    def __init__(self, settings: PythonCodeSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._eval = draw_eval(self.name, settings.num_eval, lambda rng: self._draw(rng, settings.levels))

    def num_tasks(self, split: str) -> int | None:
        """Train tasks have no end."""
        return len(self._eval) if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; `level` applies to train tasks."""
        check_position(split, index, self.num_tasks(split))
        check_level(level, LEVELS)
        if split == "eval":
            problem = self._eval[index]
        else:
            levels = self._settings.levels if level is None else (level,)
            problem = draw_train(self.name, self._seed, index, lambda rng: self._draw(rng, levels))
        return Task(task_id(split, index, level), split, problem.level, problem.payload)

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the one message of the first turn."""
        payload = task.payload
        if payload["kind"] == "function":
            ask = f"Write a Python function f(x) that returns {describe(payload)}."
        else:
            wording = _WORDINGS[int(payload["wording"])]
            ask = wording.format(expression=_expression(payload))
        return [Message("user", f"{ask} {_FORM}")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask for a program; of kind `output`, run it and in two turns ask for its result."""
        reply = await chat.say(self.prompt(task), max_tokens=self._settings.code_tokens)
        code = extract_python_block(reply.text)
        data: dict[str, Any] = {"code": code, "printed": None, "said": None, "cause": None}
        if code is None or task.payload["kind"] == "function":
            return Outcome(data)
        result = await sandbox.exec(["python3", "-I", "-S", "-B", "-c", code])
        data["cause"] = result.cause if result.rc == 0 else f"{result.cause} (rc {result.rc})"
        if result.rc != 0 or not result.stdout.strip():
            return Outcome(data)
        data["printed"] = result.stdout[:_MAX_SHOWN]
        if self._settings.turns == 2:
            shown = data["printed"].strip("\n")
            question = f"```output\n{shown}\n```\nWhat is the result?"
            reply = await chat.say([Message("user", question)], max_tokens=self._settings.say_tokens)
            data["said"] = reply.text
        return Outcome(data)

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Score what the program printed and what was said, or judge the function."""
        code = outcome.data["code"]
        if code is None:
            return checked(Reward(0.0, ("the answer holds no closed ```python block",)))
        if task.payload["kind"] == "function":
            num_right, wrong = await judge(task.payload, code, sandbox)
            reason = wrong or "every hidden input came out right"
            metrics = {"inputs_right": num_right / NUM_INPUTS}
            return checked(Reward(float(num_right == NUM_INPUTS), (reason,), metrics))
        return checked(self._score_output(task, outcome.data, code))

    def _score_output(self, task: Task, data: dict[str, Any], code: str) -> Reward:
        value = _value(task.payload)
        printed, said = data["printed"], data["said"]
        if printed is None:
            return Reward(0.0, (f"the program printed nothing: {data['cause']}",))
        ran_right = printed.strip() == str(value)
        reasons = ["printed the value" if ran_right else f"printed {printed.strip()[:40]!r}, not {value}"]
        metrics = {"printed": float(ran_right), "literal": float(ran_right and _is_literal(code))}
        if self._settings.turns == 1:
            return Reward(float(ran_right), tuple(reasons), metrics)
        said_right = said is not None and equals_number(said, value)
        metrics["said"] = float(said_right)
        reasons.append("said the value" if said_right else f"said {str(said).strip()[:40]!r}")
        return Reward(0.2 * ran_right + 0.8 * said_right, tuple(reasons), metrics)

    def _draw(self, rng: random.Random, levels: Sequence[int]) -> Problem:
        level = rng.choice(levels)
        if self._settings.kind == "function":
            return draw_function(rng, level)
        op = rng.choice(self._settings.operations)
        low, high = (1, 10) if level == 1 else (10 ** (level - 1), 10**level)
        a, b = rng.randrange(low, high), rng.randrange(low, high)
        key = ("output", op, a, b) if op == "-" else ("output", op, min(a, b), max(a, b))
        wording = rng.randrange(len(_WORDINGS))
        return Problem(key, level, {"kind": "output", "op": op, "a": a, "b": b, "wording": wording})


def _expression(payload: dict[str, Any]) -> str:
    return f"{payload['a']} {payload['op']} {payload['b']}"


def _value(payload: dict[str, Any]) -> int:
    a, b = payload["a"], payload["b"]
    return {"+": a + b, "-": a - b, "*": a * b}[payload["op"]]


def _is_literal(code: str) -> bool:
    """Whether a program holds no operation and no call but print, so that its number was not computed."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError):
        return False
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    only_print = all(isinstance(func, ast.Name) and func.id == "print" for func in calls)
    return only_print and not any(isinstance(node, (ast.BinOp, ast.AugAssign)) for node in nodes)
