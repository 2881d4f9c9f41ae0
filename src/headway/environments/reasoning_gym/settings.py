"""Arguments of `reasoning-gym:NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headway.core.settings import Problem, setting


@dataclass(frozen=True, slots=True)
class ReasoningGymSettings:
    """Arguments of every dataset of reasoning-gym."""

    levels: tuple[int, ...] = setting(
        (),
        "Levels of the tasks, each as likely: 1 is the easiest of the dataset's curriculum. Empty for the "
        "library's default difficulty.",
        ge=0,
    )
    config: dict[str, Any] = setting(
        dict, "The dataset's own parameters, such as { min_terms = 2, max_terms = 3 }, at every level."
    )
    answer_in: Literal["tags", "reply"] = setting(
        "tags", "Where the answer is: in the last <answer>...</answer> of the reply, or the whole reply."
    )
    instruction: str | None = setting(
        None, 'Text after the question. Unset for one that fits answer_in; "" for none.'
    )
    system: str = setting("", "System message; empty for the chat template's own.")
    num_eval: int = setting(64, "Held-out tasks at most; where there are few tasks, a quarter of them.", ge=1)
    task_timeout_s: float = setting(
        5.0,
        "Seconds of the processor's time in which the library must make a task; another one is drawn in the "
        "place of one that takes longer. The worker waits meanwhile.",
        gt=0,
        le=600,
    )
    verifier_timeout_s: float = setting(
        10.0,
        "Seconds of the processor's time in which the library must judge an answer.",
        gt=0,
        le=600,
    )
    verifiers: int = setting(1, "Processes of an environment worker that judge answers.", ge=1, le=64)

    def problems(self) -> list[Problem]:
        """Return rules between settings that do not hold."""
        taken = {"seed": "run.seed", "size": "num_eval"}
        return [
            Problem(f"config.{name}", self.config[name], "is not the config's to set", f"Use {instead}")
            for name, instead in taken.items()
            if name in self.config
        ]
