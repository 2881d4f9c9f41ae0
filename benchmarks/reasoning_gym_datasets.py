"""Every dataset of reasoning-gym at every level, through the environment that trains on it.

    python benchmarks/reasoning_gym_datasets.py [NAME...] [--write]

For each level: train tasks made in two environments, an eval set, the reference answers and wrong ones
judged. One JSON line a level; with --write the columns `levels` and `broken` of the package's datasets.csv
are set to what was found, and the notes, which are a person's, stay.
"""

import argparse
import asyncio
import csv
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import headway.environments.reasoning_gym as room
from headway.core.clock import stopwatch
from headway.core.errors import HeadwayError
from headway.core.protocols import Outcome
from headway.core.records import Task
from headway.environments.reasoning_gym.draws import Splits
from headway.environments.reasoning_gym.environment import ReasoningGym
from headway.environments.reasoning_gym.names import PREFIX, known_datasets, library_datasets
from headway.environments.registry import build

TABLE = Path(room.__file__).parent / "datasets.csv"
NUM_TRAIN, NUM_EVAL = 4, 8


def score(environment: ReasoningGym, task: Task, answer: str) -> float | str:
    """Return a score, or what was raised."""
    try:
        found = asyncio.run(environment.score(task, Outcome({"reply": "", "answer": answer}), None))
    except HeadwayError as error:
        return str(error)[:120]
    return found.score


def look(environment: ReasoningGym, again: ReasoningGym, level: int) -> dict[str, Any]:
    """Return what was found of a level."""
    found = {"dataset": environment.dataset, "level": level}
    try:
        began = stopwatch()
        tasks = [environment.task("train", index, level) for index in range(NUM_TRAIN)]
        found["task_s"] = round((stopwatch() - began) / NUM_TRAIN, 3)
        found["chars"] = max(len(task.payload["question"]) for task in tasks)
        same = all(again.task("train", i, level).payload == task.payload for i, task in enumerate(tasks))
        began = stopwatch()
        splits = Splits(environment.name, 0, (level,), NUM_EVAL, environment._make)
        found["eval_s"] = round(stopwatch() - began, 2)
        keys = {drawn.key for drawn in splits.evals}
        trained = [splits.train(index, None).key for index in range(16)]
        found |= {"same": same, "evals": len(keys), "few": splits.few, "overlap": len(keys & set(trained))}
        answers = [task.payload["answer"] for task in tasks]
        began = stopwatch()
        if None not in answers:
            found["own"] = [
                score(environment, task, answer) for task, answer in zip(tasks, answers, strict=True)
            ]
        found["wrong"] = [score(environment, tasks[0], text) for text in ("?", "not this", "-1", "1 " * 999)]
        found["score_s"] = round((stopwatch() - began) / (len(found.get("own", ())) + 4), 3)
    except HeadwayError as error:
        found["fault"] = str(error)[:300]
    return found


def main() -> None:
    """Look at all, or at those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    known = known_datasets()
    names = options.names or [name for name in library_datasets() if name != "composite"]
    rows = {
        name: [name, one.num_levels, " ".join(map(str, one.broken)), one.note] for name, one in known.items()
    }
    for name in sorted(names):
        try:
            arguments = {"num_eval": 1}
            environment, again = (cast("ReasoningGym", build(PREFIX + name, arguments)) for _ in range(2))
        except HeadwayError as error:
            print(json.dumps({"dataset": name, "fault": str(error)}), flush=True)
            continue
        broken = []
        for level in range(environment.num_levels + 1):
            found = look(environment, again, level)
            print(json.dumps(found), flush=True)
            if "fault" in found:
                broken.append(level)
        note = known[name].note if name in known else ""
        rows[name] = [name, environment.num_levels, " ".join(map(str, broken)), note]
        environment.close()
        again.close()
    if options.write:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            file.write(f"# reasoning-gym {version('reasoning-gym')}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([["name", "levels", "broken", "note"], *(rows[name] for name in sorted(rows))])


if __name__ == "__main__":
    main()
