"""Task ids: `split/index` or `split/index/level`, from which any worker can make the task again.

A task of a named source has the source's name before it: `sums:train/17`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headway.core.events import TaskOffered, TasksExhausted
from headway.environments.tasks import source_of, task_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.core.commands import RequestTask
    from headway.core.protocols import Environment
    from headway.core.records import Task


def offer(environments: Mapping[str, Environment], command: RequestTask) -> TaskOffered | TasksExhausted:
    """Answer a request. Training goes round and round a finite split; an evaluation takes each task once.

    Args:
        environments: by source; "" is the run's own, the one that is evaluated.
        command: the request.
    """
    environment = environments[command.source]
    size = environment.num_tasks(command.split)
    index = command.index
    if size is not None and index >= size:
        if command.split == "eval" or size == 0:
            return TasksExhausted(command.request)
        index %= size
    identifier = task_id(command.split, index, command.level)
    if command.source:
        identifier = f"{command.source}:{identifier}"
    return TaskOffered(command.request, identifier, make(environments, identifier).level, size or 0)


def make(environments: Mapping[str, Environment], identifier: str) -> Task:
    """Return the task of an id; the same id gives the same task in every worker and every life."""
    source = source_of(identifier)
    environment = environments[source]
    split, index, *level = identifier[len(source) + bool(source) :].split("/")
    task = environment.task(split, int(index), int(level[0]) if level else None)
    return dataclasses.replace(task, id=identifier)
