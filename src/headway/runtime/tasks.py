"""Task ids: `split/index` or `split/index/level`, from which any worker can make the task again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headway.core.events import TaskOffered, TasksExhausted
from headway.environments.tasks import task_id

if TYPE_CHECKING:
    from headway.core.commands import RequestTask
    from headway.core.protocols import Environment
    from headway.core.records import Task


def offer(environment: Environment, command: RequestTask) -> TaskOffered | TasksExhausted:
    """Answer a request. Training goes round and round a finite split; an evaluation takes each task once."""
    size = environment.num_tasks(command.split)
    index = command.index
    if size is not None and index >= size:
        if command.split == "eval" or size == 0:
            return TasksExhausted(command.request)
        index %= size
    identifier = task_id(command.split, index, command.level)
    return TaskOffered(command.request, identifier, make(environment, identifier).level)


def make(environment: Environment, identifier: str) -> Task:
    """Return the task of an id; the same id gives the same task in every worker and every life."""
    split, index, *level = identifier.split("/")
    task = environment.task(split, int(index), int(level[0]) if level else None)
    return dataclasses.replace(task, id=identifier)
