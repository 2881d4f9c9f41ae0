"""One exception tree, picklable, so that an error survives the way from a worker process to the user.

A `UserError` is bad input: it prints without a traceback and ends the command with exit code 2.
Everything else is an internal or infrastructure fault and keeps its traceback.
"""

from __future__ import annotations

from typing import Any


def _rebuild(cls: type[HeadwayError], args: tuple[Any, ...], state: dict[str, Any]) -> HeadwayError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def _without_stop(text: str) -> str:
    """Return a sentence without its full stop, which after a path or a value would look like a part of it."""
    text = text.rstrip()
    return text if text.endswith("..") else text.removesuffix(".")


class HeadwayError(Exception):
    """Base of every error that Headway raises on purpose.

    Attributes:
        rule: what must hold, as one sentence; `str` sets and drops full stops.
        value: the value that broke the rule, or None.
        remedy: what the reader can do about it.
        key: full config key that the value came from, such as `queue.group_size`.
        where: `file:line` of that key.
    """

    def __init__(
        self, rule: str, *, value: object = None, remedy: str = "", key: str = "", where: str = ""
    ) -> None:
        super().__init__(rule)
        self.rule = rule
        self.value = value
        self.remedy = remedy
        self.key = key
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.where, self.key) if part)
        rule, remedy = _without_stop(self.rule), _without_stop(self.remedy)
        text = f"{head}: {rule}" if head else rule
        if self.value is not None:
            text += f" (got {self.value!r})"
        return f"{text}. {remedy}" if remedy else text


class UserError(HeadwayError):
    """Bad input of any kind; exit code 2 and no traceback."""


class ConfigError(UserError):
    """One or more settings break a rule.

    `problems` holds every problem found, so that all are shown at once.
    """

    def __init__(self, problems: list[UserError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ModelError(UserError):
    """A checkpoint, tokenizer or chat template is missing, incomplete or of an unknown family."""


class EnvironmentSetupError(UserError):
    """An environment is unknown, or its tasks cannot be used as configured."""


class RunDirectoryError(UserError):
    """A run directory exists already, is not writable, or is not a run."""


class JournalError(UserError):
    """A journal cannot be read: another schema version, or damage in its middle."""


class SandboxError(HeadwayError):
    """The sandbox infrastructure failed; never the model's fault and never a reward."""


class SandboxUnavailableError(SandboxError, UserError):
    """The machine or the service lacks what the sandbox provider needs, and only a person can put it right.

    Bad input before a run. In mid-run it is what every SandboxError is, a failure of the infrastructure.
    """


class SandboxRefusedError(SandboxError):
    """The provider makes no further sandbox now, for its quota or its rate; one may be had later.

    Nobody retries it but the scheduler, which granted the place: it lowers what it grants and grants again.
    `retry_after_s` is what the provider asks to wait, 0 when it does not say.
    """

    def __init__(
        self, rule: str, *, value: object = None, remedy: str = "", key: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(rule, value=value, remedy=remedy, key=key)
        self.retry_after_s = retry_after_s


class ToolError(HeadwayError):
    """What a tool outside the sandbox needs (a service, a key, a server) failed; never a reward."""


class EngineError(HeadwayError):
    """The generator refused or lost a request."""


class EnvironmentFault(HeadwayError):
    """An environment's own code raised or broke its contract."""


class ContextFullError(EnvironmentFault):
    """What is to be answered leaves no room for an answer in the context."""


class RewardFault(HeadwayError):
    """A reward function raised, timed out, or returned something that is not a finite number."""


class WorkerDiedError(HeadwayError):
    """A worker process ended before it was told to; carries its original traceback in `value`."""


class DiskFullError(HeadwayError):
    """A file cannot be written for want of room: the disk, a quota or a limit on file sizes is full."""


class DeadlineError(HeadwayError):
    """A wait passed its deadline; the rule names who waited for whom."""
