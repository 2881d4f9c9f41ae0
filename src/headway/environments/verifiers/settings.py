"""Arguments of `verifiers:NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headway.core.settings import Problem, setting


@dataclass(frozen=True, slots=True)
class VerifiersSettings:
    """Arguments of every package made for verifiers."""

    args: dict[str, Any] = setting(
        dict,
        "What the package itself takes: arguments of its load_environment, or for a taskset (verifiers 0.4) "
        "the fields of its config.",
    )
    lock: str = setting(
        "",
        "File of exact versions, as `headway env install` wrote it, that the package must be installed with; "
        "empty for whatever is installed.",
        names="file",
    )
    module: str = setting("", "Module of the package; empty for its name with underscores.")
    num_eval: int = setting(
        64,
        "Held-out tasks at most. Where the package names no eval tasks they are taken from the train tasks, "
        "a quarter of them at most.",
        ge=0,
    )
    max_tasks: int = setting(10_000, "Tasks that are read of a split at most.", ge=1)
    processes: int = setting(1, "Processes of an environment worker that run the package.", ge=1, le=64)
    load_timeout_s: float = setting(600.0, "Seconds in which the package must be loaded.", gt=0)
    pass_env: tuple[str, ...] = setting(
        (), "Environment variables that the package gets beside the usual ones, such as the key of a judge."
    )
    unseen_answers: Literal["refuse", "train"] = setting(
        "refuse",
        "What becomes of a rollout of which the package does not show every answer that the policy gave: it "
        "fails, or all of its answers are trained.",
    )
    harness: dict[str, Any] = setting(
        dict,
        'For a taskset: config of the program that plays the agent, such as { id = "bash" }; empty for '
        "the taskset's own, or a plain conversation.",
    )

    def problems(self) -> list[Problem]:
        """Return rules between settings that do not hold."""
        found: list[Problem] = []
        if self.module and not self.module.replace(".", "_").isidentifier():
            found.append(Problem("module", self.module, "must be the name of a module", "Such as my_env"))
        return found
