"""Rows whose right answer is tests, run in a real sandbox; and such rows as `datasets` saves them."""

import json

import pytest

from headway.core.protocols import Outcome
from headway.environments.registry import build
from headway.rewards.check import checked
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings

TESTS = [
    "assert double(2) == 4",
    "assert double(-1) == -2",
    "import math\nassert double(math.inf) == math.inf",
]
ROW = {"question": "Write double(x).", "answer": TESTS}
RIGHT = "def double(x):\n    return 2 * x"


def made(tmp_path, answer=TESTS, **args):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(ROW | {"answer": answer}) + "\n")
    return build("dataset", {"data": str(data), "reward": "python-tests", "eval_share": 0.0, **args}, 0)


@pytest.fixture
async def sandbox(tmp_path):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes"), wall_s=2))
    box = await provider.create("s1", {"run": "test"})
    yield box
    await box.terminate()


async def scored(environment, code, sandbox):
    reply = f"Here it is:\n```python\n{code}\n```\n"
    return checked(
        await environment.score(environment.task("train", 0, None), Outcome({"reply": reply}), sandbox)
    )


@pytest.mark.parametrize(
    ("code", "score", "passed", "reason"),
    [
        (RIGHT, 1.0, 1.0, "every test passed"),
        ("def double(x):\n    return abs(2 * x)", 0.0, 2 / 3, "test 1: AssertionError: "),
        ("def double(x) return", 0.0, 0.0, "test 0: SyntaxError: expected ':' (answer, line 1)"),
        ("def twice(x): ...", 0.0, 0.0, "test 0: NameError: name 'double' is not defined"),
        ("while True: pass", 0.0, 0.0, "the code did not finish: wall"),
        (f"{RIGHT}\nprint('[]' * 10_000)", 1.0, 1.0, "every test passed"),
        (
            "import os\nos.write(1, b'{\"nonce\": \"0\", \"results\": [\"\", \"\", \"\"]}')\nos._exit(0)",
            0.0, 0.0, "the code did not finish: exit",
        ),
        (f"{RIGHT}\nraise SystemExit(0)", 0.0, 0.0, "test 0: SystemExit: 0"),
        (f"{RIGHT}\nopen('/work/left', 'w').write('x')", 1.0, 1.0, "every test passed"),
    ],
    ids=["right", "partly", "syntax", "name", "endless", "prints", "forged", "exits", "writes"],
)  # fmt: skip
async def test_tests_decide_in_a_sandbox(tmp_path, sandbox, code, score, passed, reason):
    environment = made(tmp_path)
    assert environment.needs_sandbox
    reward = await scored(environment, code, sandbox)
    assert (reward.score, reward.reasons) == (score, (reason,))
    assert reward.metrics["tests_passed"] == pytest.approx(passed)


async def test_one_text_is_one_test_and_a_reply_without_code_has_0(tmp_path, sandbox):
    environment = made(tmp_path, "\n".join(TESTS))
    assert (await scored(environment, RIGHT, sandbox)).score == 1.0
    task = environment.task("train", 0, None)
    nothing = await environment.score(task, Outcome({"reply": "double(x) is 2 * x"}), sandbox)
    assert (nothing.score, nothing.reasons) == (0.0, ("the answer holds no closed ```python block",))


def test_saved_rows_with_lists_are_those_of_the_file(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [ROW | {"question": f"Write double{at}(x)."} for at in range(6)]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "parts").mkdir()
    for at in (0, 3):
        datasets.Dataset.from_list(rows[at : at + 3]).to_parquet(str(tmp_path / "parts" / f"{at}.parquet"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen = []
    for data in ("saved", "parts", "rows.jsonl"):
        args = {"data": str(tmp_path / data), "reward": "python-tests", "eval_share": 0.0}
        environment = build("dataset", args, 0)
        assert environment.num_tasks("train") == 6
        seen.append([environment.task("train", at, None).payload for at in range(6)])
    assert seen[0] == seen[1] == seen[2]
    assert all(row["answer"] == TESTS for row in seen[0])
