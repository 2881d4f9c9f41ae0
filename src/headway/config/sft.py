"""Settings of supervised fine-tuning, `headway sft`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Literal

from headway.core.settings import Problem, setting

TooLong = Literal["error", "skip", "cut"]


@dataclass(frozen=True, slots=True)
class SftSettings:
    """What `headway sft` trains on, in which order and for how long. `headway train` does not read it."""

    data: str = setting(
        MISSING,
        "JSONL file of conversations to train on; a relative path is relative to the config file.",
        pattern=".+",
        form="of at least one character",
    )
    eval_data: str = setting(
        "", "JSONL file of conversations whose loss is measured and that are not trained on. Empty: none."
    )
    train_on: Literal["all", "last"] = setting(
        "all",
        "Which messages of the assistant are trained: all of them, or the last one of each conversation.",
    )
    epochs: int = setting(3, "How often the data is gone through.", ge=1)
    steps: int = setting(
        0, "Stop after so many optimizer steps, if the epochs have more; 0 for no limit.", ge=0
    )
    batch_size: int = setting(
        16, "Conversations in one optimizer step. The last step of an epoch may have fewer.", ge=1
    )
    batch_tokens: int = setting(
        0,
        "Tokens in one optimizer step, in place of batch_size: whole conversations up to this many, at least "
        "one; 0 goes by batch_size.",
        ge=0,
    )
    max_tokens: int = setting(0, "Longest conversation in tokens; 0 takes the model's longest context.", ge=0)
    too_long: TooLong = setting(
        "error",
        "What happens to longer ones: error, skip (left out), or cut (their end is left out). The number of "
        "either is printed.",
    )
    shuffle: bool = setting(True, "Go through the data in another order in each epoch, drawn from run.seed.")
    learning_rate: float | None = setting(
        None, "Peak learning rate of AdamW. Unset: trainer.learning_rate, which headway train has too.", gt=0
    )
    schedule: Literal["linear", "trainer"] = setting(
        "linear",
        "Learning rate after trainer.warmup_steps: linear falls to 0 at the last step; trainer does as "
        "trainer.schedule says.",
    )
    normaliser: Literal["token-mean", "seq-mean-token-mean"] = setting(
        "token-mean",
        "What the loss is the mean over: the trained tokens of a batch, or its conversations (each the mean "
        "of its tokens).",
    )
    eval_every_steps: int = setting(
        0,
        "Measure the loss on eval_data each time this many steps are done; 0 at the start and the end only.",
        ge=0,
    )

    def problems(self) -> list[Problem]:
        """Evaluation needs data."""
        if self.eval_every_steps and not self.eval_data:
            rule = "needs sft.eval_data, of which there is none"
            remedy = "Name a JSONL file, or set eval_every_steps = 0"
            return [Problem("eval_every_steps", self.eval_every_steps, rule, remedy)]
        return []
