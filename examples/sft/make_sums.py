"""Write sums.jsonl and sums_eval.jsonl for examples/sft.toml: tasks of `arithmetic` with right answers.

The first has train tasks of seed 0; the second the held-out ones, which `headway train` evaluates on.

python examples/sft/make_sums.py
"""

import json
from collections.abc import Iterable
from pathlib import Path

from headway.core.records import Task
from headway.environments.arithmetic import Arithmetic, ArithmeticSettings

HERE = Path(__file__).parent
NUM_TRAIN = 48


def lines(environment: Arithmetic, tasks: Iterable[Task]) -> list[str]:
    """Return one JSON line for each task, none twice."""
    found: dict[str, None] = {}
    for task in tasks:
        (question,) = environment.prompt(task)
        messages = [
            {"role": "user", "content": question.content},
            {"role": "assistant", "content": str(task.payload["a"] + task.payload["b"])},
        ]
        found[json.dumps({"messages": messages})] = None
    return list(found)


if __name__ == "__main__":
    sums = Arithmetic(ArithmeticSettings(levels=(1, 2)), seed=0)
    train = lines(sums, (sums.task("train", index, None) for index in range(3 * NUM_TRAIN)))[:NUM_TRAIN]
    held_out = lines(sums, (sums.task("eval", index, None) for index in range(sums.num_tasks("eval") or 0)))
    (HERE / "sums.jsonl").write_text("\n".join(train) + "\n", encoding="utf-8")
    (HERE / "sums_eval.jsonl").write_text("\n".join(held_out) + "\n", encoding="utf-8")
