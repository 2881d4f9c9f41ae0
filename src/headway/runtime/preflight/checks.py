"""Every check in its order, what it needs, and which of them `headway train` runs by itself.

A check that needs another one that failed is not run; it is named, so that nobody takes it for well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headway.config.load import load_config
from headway.core.errors import ConfigError, UserError
from headway.core.storage import refused
from headway.models.checkpoint import is_to_fetch
from headway.runtime.model import say_aside
from headway.runtime.preflight import (
    chat,
    disk,
    environments,
    files,
    loading,
    machine,
    model,
    rollout,
    sandboxes,
    settings,
    tasks,
    versions,
)
from headway.runtime.preflight.findings import Finding, failed
from headway.runtime.preflight.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Check:
    """One subject.

    Attributes:
        name: as it is shown.
        look: yields at least one finding; a UserError that it raises is one too.
        needs: checks without whose success it cannot be run.
        is_fast: takes no model, no sandbox and no code of an environment: `headway train` runs it.
    """

    name: str
    look: Callable[[Subject], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    is_fast: bool = False


CHECKS = (
    Check("settings", settings.settings, is_fast=True),
    Check("files", files.files, is_fast=True),
    Check("versions", versions.packages, is_fast=True),
    Check("model", model.model_files, is_fast=True),
    Check("tokenizer", chat.tokenizer, ("model",), is_fast=True),
    Check("chat template", chat.chat_template, ("tokenizer",), is_fast=True),
    Check("cores", machine.cores, is_fast=True),
    Check("memory", machine.memory, ("model",), is_fast=True),
    Check("disk", disk.disk, ("model",), is_fast=True),
    Check("quota", sandboxes.quota, is_fast=True),
    Check("image", sandboxes.image, is_fast=True),
    Check("device", versions.device),
    Check("loading", loading.loading, ("model",)),
    Check("environment", environments.environment, ("files",)),
    Check("sandbox", sandboxes.sandbox, ("environment", "image")),
    Check("left over", sandboxes.left_over),
    Check("prompts", tasks.prompts, ("environment", "chat template")),
    Check("splits", tasks.splits, ("environment",)),
    Check("duplicates", tasks.duplicates, ("environment",)),
    Check("rollout", rollout.rollouts, ("prompts", "sandbox")),
)


@dataclass(frozen=True, slots=True)
class Looked:
    """A check's findings; none when it was not run."""

    check: Check
    findings: tuple[Finding, ...]


def look(subject: Subject, checks: Sequence[Check] = CHECKS) -> Iterator[Looked]:
    """Run the checks in their order; yield each when it is done."""
    lacking: set[str] = set()
    for check in checks:
        found: tuple[Finding, ...] = ()
        if lacking.isdisjoint(check.needs):
            found = tuple(_placed(finding, subject) for finding in _findings(check, subject))
        if not found or any(finding.level == "error" for finding in found):
            lacking.add(check.name)
        yield Looked(check, found)


def look_at_file(path: Path | None, overrides: Sequence[str]) -> tuple[Subject | None, Iterator[Looked]]:
    """Load a config; return what is looked at, and each check when it is done.

    A config that cannot be loaded fails the first check, and there is nothing to look at.
    """
    try:
        subject = Subject(load_config(path, overrides), path, overrides)
    except (UserError, OSError) as error:
        bad = error if isinstance(error, UserError) else refused(error)
        if bad is None:
            raise
        others = [Looked(check, ()) for check in CHECKS[1:]]
        return None, iter([Looked(CHECKS[0], tuple(failed(bad))), *others])
    return subject, look(subject)


def fast_part(subject: Subject) -> Path:
    """Run the fast checks, print warnings, and return the model's directory.

    Raises ConfigError with every error; those that show without a model are raised before one is fetched.
    """
    checks = [check for check in CHECKS if check.is_fast]
    on_model = [check for check in checks if check.name == "model" or check.needs]
    found = _of(subject, [check for check in checks if check not in on_model])
    if not (_errors(found) and is_to_fetch(subject.config.model.path)):
        found += _of(subject, on_model)
    for finding in found:
        if finding.level == "warning":
            say_aside(f"warning: {finding.sentence()}")
    if errors := _errors(found):
        raise ConfigError(errors)
    return subject.model_dir


def _of(subject: Subject, checks: Sequence[Check]) -> list[Finding]:
    return [finding for each in look(subject, checks) for finding in each.findings]


def _errors(found: list[Finding]) -> list[UserError]:
    return [finding.error for finding in found if finding.error is not None]


def _findings(check: Check, subject: Subject) -> Iterator[Finding]:
    try:
        yield from check.look(subject)
    except UserError as error:
        yield from failed(error)
    except OSError as error:
        if (refusal := refused(error)) is None:
            raise
        yield from failed(refusal)


def _placed(finding: Finding, subject: Subject) -> Finding:
    """Return a finding with the place of its key."""
    if not finding.key or finding.where:
        return finding
    where = subject.source.where(finding.key)
    if finding.error is not None:
        finding.error.where = finding.error.where or where
    return replace(finding, where=where)
