"""Arguments of `dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from string import Formatter
from typing import Literal

from headway.core.hooks import HookError, is_own, load_function
from headway.core.near import did_you_mean, nearest
from headway.core.settings import Problem, setting
from headway.rewards.patterns import compiled

VERIFIERS = ("number", "exact", "contains", "choice", "regex", "python-tests")
PROMPT_COLUMNS = ("prompt", "messages", "question", "problem", "instruction")
ANSWER_COLUMNS = ("answer", "solution", "target", "label", "output")
REWARD_PARAMETERS = ("answer", "row")
HUB = "hf:"


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """Arguments of `dataset`."""

    data: str = setting(
        MISSING,
        "Rows to train on: a .jsonl or .parquet file, a folder of Parquet files or one that `datasets` "
        "saved, or hf:OWNER/NAME on the Hugging Face Hub. A relative path is relative to the config file.",
        pattern=".+",
        form="of at least one character",
        names="file",
    )
    reward: str = setting(
        MISSING,
        "What judges an answer: number, exact, contains, choice, regex, python-tests (docs/data.md), or your "
        "own function (answer: str, row: dict) -> float, (float, reason) or Reward, plain or async: "
        "file.py:function or module:function.",
        names="hook",
    )
    eval_data: str = setting(
        "", "Held-out rows, named like data; empty takes them out of data.", names="file"
    )
    split: str = setting("", "Split of data where it has several, such as train. Empty: train.")
    eval_split: str = setting(
        "",
        "Split of the held-out rows: of eval_data, or without one of data. Empty: test where "
        "eval_data is given and has splits.",
    )
    hub_config: str = setting("", "Configuration of the dataset on the Hub, such as main.")
    revision: str = setting("", "Commit, tag or branch of the dataset on the Hub.")
    split_column: str = setting("", "Column that says of each row of data which split it is in.")
    eval_values: tuple[str, ...] = setting(
        ("eval", "test", "validation", "valid", "dev"), "Values of split_column that hold a row out."
    )
    eval_share: float = setting(
        0.1,
        "Share of the rows that is held out where nothing else says which. Rows with the same prompt are on "
        "the same side, and a row stays on its side whatever else the data holds.",
        ge=0,
        lt=1,
    )
    num_eval: int = setting(0, "Held-out tasks at most; 0 for all.", ge=0)
    prompt: str = setting(
        "",
        "Column of the prompt: a text, or messages (role and content). Empty: the first of prompt, messages, "
        "question, problem, instruction that there is.",
    )
    template: str = setting(
        "", "User message with columns in braces, such as 'Question: {question}', in place of prompt."
    )
    answer: str = setting(
        "",
        "Column of the right answer. Empty: the first of answer, solution, target, label, output that there "
        "is; your own reward function needs none.",
    )
    level: str = setting("", "Column of the level for the curriculum, an integer or one of level_names.")
    level_names: tuple[str, ...] = setting((), "Names of levels, easiest first; the first is level 1.")
    system: str = setting("", "System message before each prompt; empty for the chat template's own.")
    reply_pattern: str = setting(
        "",
        "Regular expression whose first group, in its last match, is the answer in a reply; a reply without "
        "a match scores 0. Empty: the whole reply.",
    )
    answer_pattern: str = setting(
        "", r"The same for the column of the right answer, such as '#### (.+)'; every row must match."
    )
    stop: tuple[str, ...] = setting((), "Texts that end a reply.")
    max_tokens: int = setting(0, "Longest reply, tokens; 0 for generator.max_answer_tokens.", ge=0)
    max_prompt_chars: int = setting(0, "Leave rows with longer prompts out; 0 leaves none out.", ge=0)
    duplicates: Literal["keep", "drop"] = setting(
        "keep",
        "Rows with the prompt of an earlier one: keep, or drop them, and train rows whose prompt is held "
        "out.",
    )
    shuffle: bool = setting(True, "Order of the train rows: drawn from run.seed, or that of the data.")

    @property
    def needs_sandbox(self) -> bool:
        """Whether what the model writes is run."""
        return self.reward == "python-tests"

    def problems(self) -> Iterator[Problem]:
        """Yield rules between settings that do not hold; the reward function is loaded."""
        yield from self._reward_problems()
        for name in ("reply_pattern", "answer_pattern"):
            pattern = getattr(self, name)
            try:
                fits = not pattern or compiled(pattern).groups >= 1
            except ValueError as error:
                yield Problem(
                    name, pattern, f"must be a regular expression: {error}", "Write it in single quotes"
                )
                continue
            if not fits:
                yield Problem(
                    name, pattern, "must have a group, which is the answer", "Write it like '#### (.+)'"
                )
        if self.template:
            try:
                fields = [field for _, field, _, _ in Formatter().parse(self.template) if field is not None]
            except ValueError as error:
                fields = []
                yield Problem(
                    "template",
                    self.template,
                    f"cannot be read: {error}",
                    "Double braces that mean themselves",
                )
            else:
                if not all(fields):
                    yield Problem(
                        "template",
                        self.template,
                        "must name a column in each pair of braces",
                        "Write {question}",
                    )
            if self.prompt:
                yield Problem(
                    "prompt", self.prompt, "has no effect beside template", "Leave one of the two out"
                )
        if self.split_column and (self.eval_data or self.eval_split):
            yield Problem(
                "split_column",
                self.split_column,
                "has no effect beside eval_data or eval_split",
                "Leave one out",
            )
        if self.level_names and not self.level:
            yield Problem("level_names", list(self.level_names), "needs level, the column", "Set level")

    def _reward_problems(self) -> Iterator[Problem]:
        if self.reward in VERIFIERS:
            return
        if not is_own(self.reward):
            remedy = did_you_mean(nearest(self.reward, VERIFIERS))
            rule = f"must be one of {', '.join(VERIFIERS)}, or name a function"
            yield Problem("reward", self.reward, rule, remedy or "Write file.py:function for your own")
            return
        try:
            load_function(self.reward, REWARD_PARAMETERS, may_await=True)
        except HookError as error:
            yield Problem("reward", self.reward, error.rule, error.remedy)
