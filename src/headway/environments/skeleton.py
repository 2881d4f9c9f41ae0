"""The files of `headway env new`: an environment that trains as it is, its config, and its test."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.environments.registry import BUILT_IN

if TYPE_CHECKING:
    from pathlib import Path

_ENVIRONMENT = '''"""NAME: say what it teaches.

    headway env check NAME.py
    headway env try NAME.py --model tiny
    headway train NAME.toml
"""

import random
from dataclasses import dataclass

from headway.core.records import Reward
from headway.core.settings import setting
from headway.environments.own import OwnEnvironment


@dataclass(frozen=True, slots=True)
class Settings:
    """What `[environment.args]` may set."""

    largest: int = setting(9, "Largest number of a sum.", ge=1)


class CLASS(OwnEnvironment):
    """One line for `headway env list`: a sum."""

    settings_type = Settings

    def problem(self, rng: random.Random, level: int) -> dict:
        """Return a problem: what is asked and, under "answer", what the prompt must not say."""
        a, b = (rng.randint(0, self.settings.largest) for _ in range(2))
        return {"question": f"{a}+{b}=", "answer": a + b}

    # Functions that the policy may call; each is told by its signature and docstring.
    #
    # def tools(self, task, state, sandbox):
    #     def add(a: int, b: int) -> int:
    #         """Add two numbers."""
    #         state["calls"] = state.get("calls", 0) + 1
    #         return a + b
    #
    #     return [add]

    def reward(self, task, outcome) -> Reward:
        """Judge the answer; `outcome["state"]` is what the tools left."""
        wanted, answer = str(task.payload["answer"]), outcome["answer"].strip()
        return Reward(float(answer == wanted), (f"{wanted} was expected, the answer was {answer[:40]!r}",))
'''

_CONFIG = """# headway train NAME.toml

[model]
path = "tiny"              # a model of your own: a folder, or `headway model fetch`

[environment]
name = "NAME.py"           # beside this file
args = { largest = 9 }

[generator]
max_running = 64
max_context_tokens = 768   # of this model every byte is a token; the schema of one tool takes about 450
max_answer_tokens = 8

[queue]
group_size = 8
batch_size = 64

[trainer]
full = true                # every weight; the model is small
learning_rate = 3e-4

[eval]
num_tasks = 16

[stop]
steps = 50
"""

_TEST = '''"""pytest test_NAME.py"""

from pathlib import Path

from headway.environments.contract import assert_contract
from headway.environments.registry import build

FILE = str(Path(__file__).with_name("NAME.py"))


def test_it_keeps_the_contract():
    assert_contract(FILE)


def test_only_the_right_answer_is_rewarded():
    environment = build(FILE)
    task = environment.task("train", 0, None)
    right = {"answer": str(task.payload["answer"]), "state": {}}
    assert environment.reward(task, right).score == 1
    assert environment.reward(task, {"answer": "x", "state": {}}).score == 0
'''


def write_skeleton(name: str, folder: Path) -> list[Path]:
    """Write an environment into a folder, which is made; return the files.

    Raises UserError when the name is no name of a Python module, is a built-in one, or a file is there.
    """
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module) or name in BUILT_IN:
        raise UserError(
            "an environment's name must be lower-case letters, digits and dashes, and none that is built in",
            value=name,
            remedy="Choose another one, such as my-game",
        )
    class_name = "".join(part.capitalize() for part in module.split("_"))
    texts = {f"{module}.py": _ENVIRONMENT, f"{module}.toml": _CONFIG, f"test_{module}.py": _TEST}
    files = [folder / file for file in texts]
    if there := next((file for file in files if file.exists()), None):
        raise UserError(
            "a file of that name is there already", value=str(there), remedy="Choose another name"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text.replace("NAME", module).replace("CLASS", class_name), encoding="utf-8")
    return files
