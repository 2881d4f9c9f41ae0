"""Tasks: prompts that leave room for an answer, and eval tasks that are not trained on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.environments.faults import raised
from headway.runtime.environment_worker import no_room, prompt_lengths
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.core.protocols import Environment
    from headway.runtime.preflight.subject import Subject

NUM_PROMPTS = 64  # of each split and source
NUM_TRAIN = 1000  # of each source
NUM_EVAL = 2000


def prompts(subject: Subject) -> Iterator[Finding]:
    """Render the prompts of the first tasks, and compare their lengths with the context."""
    settings = subject.config.generator
    limit, room = settings.max_context_tokens, settings.max_answer_tokens
    longest, tight, looked = 0, list[str](), 0
    for split, environment in _splits(subject):
        try:
            lengths = prompt_lengths(environment, subject.renderer, split, NUM_PROMPTS)
        except UserError:
            raise
        except Exception as error:  # the environment's own code may raise anything
            yield from failed(raised(error, f"posing its first {split} tasks"))
            return
        looked += len(lengths)
        longest = max([longest, *lengths])
        for index, length in enumerate(lengths):
            if length >= limit:
                yield from failed(no_room(environment, split, index, length, limit))
                return
            if length > limit - room:
                tight.append(f"{split} task {index} of {environment.name} with {length}")
    if tight:
        yield warning(
            f"{len(tight)} of the first {looked} prompts leave less than max_answer_tokens = {room} "
            f"of {limit} context tokens for the answer, such as {tight[0]}",
            f"Use generator.max_context_tokens = {longest + room} or more, or shorter tasks",
            key="generator.max_context_tokens",
        )
        return
    yield ok(
        f"the longest of the first {looked} has {longest} tokens, and {limit - longest} are left for answers"
    )


def splits(subject: Subject) -> Iterator[Finding]:
    """Compare the first train tasks of every source with the eval tasks, by what they ask."""
    if not subject.config.eval.num_tasks:
        yield ok("nothing is evaluated")
        return
    evaluated = subject.environments[""]
    try:
        held_out = _payloads(evaluated, "eval", NUM_EVAL)
        trained = {
            name: _payloads(environment, "train", NUM_TRAIN)
            for name, environment in subject.train_environments.items()
        }
    except UserError:
        raise
    except Exception as error:  # the environment's own code may raise anything
        yield from failed(raised(error, "making its tasks"))
        return
    num_train = sum(map(len, trained.values()))
    if "{}" in held_out:
        yield ok("the tasks' payloads are empty, so that nobody can tell whether the splits overlap")
        return
    for name, payloads in trained.items():
        if both := [payload for payload in payloads if payload in held_out]:
            example, source = both[0], f" of source {name}" if name else ""
            yield warning(
                f"{len(both)} of the first {len(payloads)} train tasks{source} are eval tasks too, such as "
                f"train task {payloads[example]} and eval task {held_out[example]}: {_short(example)}",
                "Draw eval tasks that are never trained on: the evaluation measures what was memorised",
                key="environment.name",
            )
            return
    yield ok(f"{num_train:,} train tasks are all others than the {len(held_out):,} eval tasks")


def _splits(subject: Subject) -> Iterator[tuple[str, Environment]]:
    for environment in subject.train_environments.values():
        yield "train", environment
    if subject.config.eval.num_tasks:
        yield "eval", subject.environments[""]


def _payloads(environment: Environment, split: str, most: int) -> dict[str, int]:
    """Return the index of the first task of each payload."""
    size = environment.num_tasks(split)
    found: dict[str, int] = {}
    for index in range(most if size is None else min(size, most)):
        payload = environment.task(split, index, None).payload
        found.setdefault(json.dumps(payload, sort_keys=True, default=str), index)
    return found


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
