"""Tasks: prompts that leave room for an answer, and eval tasks that are not trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from headway.core.clock import stopwatch
from headway.core.errors import UserError
from headway.core.protocols import Environment
from headway.environments.faults import raised
from headway.runtime.environment_worker import no_room, prompt_length
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject

NUM_PROMPTS = 64  # of each split and source that has no end
NUM_ROWS = 50_000  # of each split and source that has one
NUM_TRAIN = 1000  # of each source that has no end
NUM_SHOWN = 3
LOOK_S = 30.0  # for reading tasks; what is left then is not looked at


def prompts(subject: Subject) -> Iterator[Finding]:
    """Render the prompts of the tasks, and compare their lengths with the context.

    Of a split without an end the first ones are looked at, of others all, as far as the time allows.
    """
    settings = subject.config.generator
    limit, room = settings.max_context_tokens, settings.max_answer_tokens
    longest, looked, begun = 0, 0, stopwatch()
    over, tight = list[_Long](), list[_Long]()
    for split, environment in _splits(subject):
        size = environment.num_tasks(split)
        most = NUM_PROMPTS if size is None else min(size, NUM_ROWS)
        for index in range(most):
            if index >= NUM_PROMPTS and stopwatch() - begun > LOOK_S:
                break
            try:
                length = prompt_length(environment, subject.renderer, split, index)
            except UserError:
                raise
            except Exception as error:  # the environment's own code may raise anything
                yield from failed(raised(error, f"posing its first {split} tasks"))
                return
            looked += 1
            longest = max(longest, length)
            if length > limit - room:
                (over if length >= limit else tight).append(_Long(environment, split, index, length))
    if over:
        first = over[0]
        error = no_room(first.environment, first.split, first.index, first.length, limit)
        if len(over) > 1:
            error.rule += f"; so do {len(over)} of the {looked:,} prompts: {_name(over)}"
        yield from failed(error)
        return
    if tight:
        yield warning(
            f"{len(tight)} of the first {looked} prompts leave less than max_answer_tokens = {room} "
            f"of {limit} context tokens for the answer, such as {_name(tight)}",
            f"Use generator.max_context_tokens = {longest + room} or more, or shorter tasks",
            key="generator.max_context_tokens",
        )
        return
    yield ok(
        f"the longest of the first {looked} has {longest} tokens, and {limit - longest} are left for answers"
    )


@dataclass(frozen=True, slots=True)
class _Long:
    """A prompt and its length in tokens."""

    environment: Environment
    split: str
    index: int
    length: int


def _name(found: list[_Long]) -> str:
    shown = [
        f"{_where(one.environment, one.split, one.index)} of {one.environment.name} with {one.length}"
        for one in sorted(found, key=lambda one: -one.length)
    ]
    return ", ".join(shown[:NUM_SHOWN])


def splits(subject: Subject) -> Iterator[Finding]:
    """Compare the first train tasks of every source with the eval tasks, by what they ask."""
    if not subject.config.eval.num_tasks:
        yield ok("nothing is evaluated")
        return
    evaluated = subject.environments[""]
    try:
        held_out = _asked(evaluated, "eval")
        trained = {name: _asked(one, "train") for name, one in subject.train_environments.items()}
    except UserError:
        raise
    except Exception as error:  # the environment's own code may raise anything
        yield from failed(raised(error, "making its tasks"))
        return
    num_train = sum(one.num_tasks for one in trained.values())
    if "{}" in held_out.first:
        yield ok("the tasks' payloads are empty, so that nobody can tell whether the splits overlap")
        return
    for name, one in trained.items():
        if both := [text for text in one.first if text in held_out.first]:
            environment, source = subject.train_environments[name], f" of source {name}" if name else ""
            number = sum(one.counts[text] for text in both)
            train = _where(environment, "train", one.first[both[0]])
            held = _where(evaluated, "eval", held_out.first[both[0]])
            yield warning(
                f"{number} of the first {one.num_tasks} train tasks{source} are eval tasks too, such as "
                f"{train} and {held}: {_short(both[0])}",
                f"Draw eval tasks that are never trained on: the evaluation measures what was memorised"
                f"{_or_drop(environment)}",
                key="environment.name",
            )
            return
    yield ok(f"{num_train:,} train tasks are all others than the {held_out.num_tasks:,} eval tasks")


def duplicates(subject: Subject) -> Iterator[Finding]:
    """Look for tasks of a split with an end that ask what an earlier one of it asks."""
    told: list[str] = []
    well = True
    for split, environment in _splits(subject):
        if environment.num_tasks(split) is None:
            told.append(f"{split} tasks of {environment.name} have no end")
            continue
        try:
            asked = _asked(environment, split)
        except UserError:
            raise
        except Exception as error:  # the environment's own code may raise anything
            yield from failed(raised(error, "making its tasks"))
            return
        if asked.num_repeated and "{}" not in asked.first:
            well = False
            pairs = [
                f"{_where(environment, split, again)} asks what {split} task {first} asks"
                for again, first in asked.repeats[:NUM_SHOWN]
            ]
            number = f"{asked.num_repeated} of {asked.num_tasks:,} {split} tasks"
            yield warning(
                f"{number} repeat another: {'; '.join(pairs)}",
                f"Leave the repetitions out, unless they are meant as a weight{_or_drop(environment)}",
                key="environment.name",
            )
        told.append(f"{asked.num_tasks:,} {split} tasks of {environment.name} all differ")
    if well:
        yield ok("; ".join(told))


@dataclass(slots=True)
class _Asked:
    """What the tasks of a split ask."""

    num_tasks: int = 0
    num_repeated: int = 0
    first: dict[str, int] = field(default_factory=dict[str, int])  # what is asked -> its first index
    counts: dict[str, int] = field(default_factory=dict[str, int])
    repeats: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (again, first), some


def _asked(environment: Environment, split: str) -> _Asked:
    """Return what the first tasks of a split ask, all where it has an end and the time allows.

    An environment whose `asks(task)` tells it is taken at its word; of others it is the payload.
    """
    size, asks = environment.num_tasks(split), cast("Any", getattr(environment, "asks", None))
    found, begun = _Asked(), stopwatch()
    for index in range(NUM_TRAIN if size is None else min(size, NUM_ROWS)):
        if index >= NUM_PROMPTS and stopwatch() - begun > LOOK_S:
            break
        task = environment.task(split, index, None)
        text = asks(task) if asks else json.dumps(task.payload, sort_keys=True, default=str)
        first = found.first.setdefault(text, index)
        found.num_tasks += 1
        found.counts[text] = found.counts.get(text, 0) + 1
        if first != index:
            found.num_repeated += 1
            if len(found.repeats) < NUM_SHOWN:
                found.repeats.append((index, first))
    return found


def _where(environment: Environment, split: str, index: int) -> str:
    """Return a task's position, and the place of its row for environments that know it."""
    place = cast("Any", getattr(environment, "place", None))
    return f"{split} task {index}" + (f" ({place(split, index)})" if place else "")


def _or_drop(environment: Environment) -> str:
    return ', or set environment.args.duplicates = "drop"' if environment.name == "dataset" else ""


def _splits(subject: Subject) -> Iterator[tuple[str, Environment]]:
    for environment in subject.train_environments.values():
        yield "train", environment
    if subject.config.eval.num_tasks:
        yield "eval", subject.environments[""]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
