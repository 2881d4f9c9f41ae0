"""Arguments of `harness`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any

from headway.core.settings import Problem, setting
from headway.environments.templates import template_problem

PLACES = ("prompt", "prompt_file", "base_url", "key", "model", "id")


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """Arguments of `harness`."""

    tasks: str = setting(
        MISSING,
        "Tasks: a .jsonl file with one a line, or your own function (split: str) -> list of them, "
        "file.py:function or module:function (docs/gateway.md). A relative path is relative to the config "
        "file.",
        names="either",
    )
    command: tuple[str, ...] = setting(
        MISSING,
        "Words of the command that runs in the sandbox. {prompt}, {prompt_file}, {base_url}, {key}, {model} "
        "and {id} stand for what they say; write {{ and }} for braces.",
    )
    env: dict[str, Any] = setting(
        dict, "Environment variables of the command, texts with the same words in braces."
    )
    eval_tasks: str = setting(
        "",
        "Held-out tasks of a file, as tasks; empty for those of tasks whose split is eval.",
        names="either",
    )
    files: str = setting(
        "",
        "Folder whose content every sandbox of a rollout begins with, beside the task's; relative to the "
        "config file.",
        names="file",
    )
    test: tuple[str, ...] = setting(
        (), "Words of the command that scores a task which has no test of its own: exit code 0 is 1, else 0."
    )
    timeout_s: float = setting(
        300.0, "Seconds that the command may run; while it waits for the policy they do not count.", gt=0
    )
    wall_s: float = setting(7200.0, "Seconds that the command may run in all, that waiting included.", gt=0)
    test_timeout_s: float = setting(60.0, "Seconds that the test may run.", gt=0)
    collect: str = setting(".", "What of /work the test sees: a file or folder.")
    max_collected_mb: int = setting(16, "Size of what is collected, MiB.", ge=1)
    shown_chars: int = setting(4000, "Characters kept of the end of each output, to be shown.", ge=0)

    def problems(self) -> list[Problem]:
        """Return the rules that do not hold."""
        found: list[Problem] = []
        if not self.command:
            found.append(Problem("command", (), "must have a word", 'Such as ["python3", "agent.py"].'))
        words = [("command", word) for word in self.command]
        words += [(f"env.{name}", str(value)) for name, value in self.env.items()]
        told = (template_problem(key, word, PLACES) for key, word in words)
        found += [problem for problem in told if problem is not None]
        return found
