"""Write right answers to train tasks of level 1, for `headway sft`: what a model never does it must be shown.

From the root of the repository:

    python examples/bugfix/written.py examples/bugfix/tasks.jsonl written.jsonl
"""

import argparse
import itertools
import json

from headway.environments.bugfix.environment import Bugfix, BugfixSettings


def main(tasks, out, max_lines):
    """Write a conversation for each train task."""
    environment = Bugfix(BugfixSettings(tasks=tasks, levels=(1,), max_lines=max_lines), seed=0)
    rows = {}
    for index in itertools.count():
        task = environment.task("train", index, 1)
        name = task.payload["instance"]
        if name in rows:  # they come again
            break
        said = [{"role": message.role, "content": message.content} for message in environment.prompt(task)]
        said.append({"role": "assistant", "content": environment.answer(task)})
        rows[name] = json.dumps({"messages": said})
    with open(out, "w", encoding="utf-8") as file:
        file.writelines(f"{row}\n" for row in rows.values())
    print(f"{len(rows)} conversations in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write right answers to train tasks of level 1.")
    parser.add_argument("tasks", help="File of tasks.")
    parser.add_argument("out", help="JSONL file to write.")
    parser.add_argument("--max-lines", type=int, default=12, help="Longest function.")
    given = parser.parse_args()
    main(given.tasks, given.out, given.max_lines)
