"""The user's environment: it is built, and its first tasks are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.errors import EnvironmentSetupError, UserError
from headway.environments.faults import raised
from headway.runtime.environment_worker import check_levels
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject


def environment(subject: Subject) -> Iterator[Finding]:
    """Build every environment, make a train and an eval task, and every level that the curriculum names."""
    try:
        environments = subject.environments
        check_levels(environments, subject.config)
        for entry in subject.train_environments.values():
            if entry.num_tasks("train") != 0:
                entry.task("train", 0, None)
        evaluated = environments[""]
        num_eval = evaluated.num_tasks("eval") if subject.config.eval.num_tasks else 0
        if num_eval != 0:
            evaluated.task("eval", 0, None)
    except UserError:
        raise
    except Exception as error:  # the environment's own code may raise anything
        yield from failed(raised(error, "being built and making its first tasks"))
        return
    wanted = subject.config.eval.num_tasks
    for name, entry in subject.train_environments.items():
        if entry.num_tasks("train") == 0:
            yield from failed(
                EnvironmentSetupError(
                    f"the environment {entry.name} must have train tasks",
                    value=0,
                    remedy="Look at what its num_tasks('train') returns",
                    key=f"source.{name}.environment" if name else "environment.name",
                )
            )
    asked = subject.source.is_given("eval.num_tasks")
    if wanted and num_eval is not None and num_eval < wanted and (asked or not num_eval):
        yield warning(
            f"{evaluated.name} has {num_eval} eval tasks, and {wanted} are asked for",
            f"Use eval.num_tasks = {num_eval}" if num_eval else "Use eval.num_tasks = 0",
            key="eval.num_tasks",
        )
        return
    sizes = [_size(entry.name, entry.num_tasks("train")) for entry in subject.train_environments.values()]
    evaluations = wanted if num_eval is None else min(wanted, num_eval)
    yield ok(f"{', '.join(sizes)}; {evaluations} eval tasks" if wanted else ", ".join(sizes))


def _size(name: str, number: int | None) -> str:
    return f"{name} has {'endless' if number is None else f'{number:,}'} train tasks"
