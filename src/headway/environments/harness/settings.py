"""Arguments of `harness`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from string import Formatter
from typing import Any

from headway.core.settings import Problem, setting

PLACES = ("prompt", "prompt_file", "base_url", "key", "model", "id")


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """Arguments of `harness`."""

    tasks: str = setting(
        MISSING,
        "Tasks: a .jsonl file with one a line, or your own function (split: str) -> list of them, "
        "file.py:function or module:function (docs/gateway.md).",
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
        "", "Held-out tasks of a file, as tasks; empty for those of tasks whose split is eval."
    )
    files: str = setting(
        "", "Folder whose content every sandbox of a rollout begins with, beside the task's."
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
        for key, word in words:
            try:
                unknown = {name for _, name, _, _ in Formatter().parse(word) if name is not None} - {*PLACES}
            except ValueError as error:
                rule = f"must have braces in pairs: {error}"
                found.append(Problem(key, word, rule, "Write {{ and }} for braces that are meant so."))
                continue
            if unknown:
                rule = f"must name only {', '.join(PLACES)} in braces"
                found.append(Problem(key, word, rule, "Write {{ and }} for braces that are meant so."))
        return found
