"""Disk: what checkpoints, payloads and the journal take, and where versions are handed over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import RunDirectoryError
from headway.core.storage import free_bytes, size
from headway.matching.memory import checkpoint_bytes, handover_bytes
from headway.runtime.handover import SHARED_MEMORY
from headway.runtime.life import fits_shared_memory
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.config.compose import Config
    from headway.runtime.preflight.subject import Subject

_TOKEN_BYTES = 9 + 6  # id, mask and log-prob; its text in the transcript
_PAYLOAD_BYTES = 1_000  # of a payload beside its tokens, measured
_JOURNAL_BYTES = 3_000  # of a rollout's records, measured


def disk(subject: Subject) -> Iterator[Finding]:
    """Free space against what a whole run writes and keeps."""
    config, place = subject.config, subject.run_dir
    if (blocking := _in_the_way(Path(config.run.dir).absolute(), place)) is not None:
        yield from failed(
            RunDirectoryError(
                f"the run directory {config.run.dir} cannot be made: {blocking} is not a directory",
                remedy="Choose another one with run.dir=DIRECTORY",
                key="run.dir",
            )
        )
        return
    if not os.access(place, os.W_OK):
        yield from failed(
            RunDirectoryError(
                f"the run directory {config.run.dir} cannot be made: {place} is not writable",
                remedy="Choose a writable place with run.dir=DIRECTORY",
                key="run.dir",
            )
        )
        return
    free = free_bytes(place)
    handed = handover_bytes(subject.facts, config)
    in_memory = fits_shared_memory(handed)
    on_disk = 0 if in_memory else handed
    one, number = checkpoint_bytes(subject.facts, config), checkpoints_at_once(config)
    records = record_bytes(config)
    needed = number * one + (records or 0) + on_disk
    rollouts = "rollouts without end (stop.steps is 0)" if records is None else f"rollouts of {size(records)}"
    text = f"{number} checkpoints of {size(one)}, {rollouts}"
    if one + on_disk > free:
        yield from failed(
            RunDirectoryError(
                f"{config.run.dir} must have room for a checkpoint of {size(one)}, and {size(free)} are free",
                remedy="Free some space, or choose another disk with run.dir=DIRECTORY",
                key="run.dir",
            )
        )
        return
    if needed > free:
        yield warning(
            f"{text}: {size(needed)}, and {size(free)} are free",
            "Free some space, choose another disk with run.dir=DIRECTORY, or keep less (checkpoint.keep, "
            "retention.payloads)",
            key="run.dir",
        )
    else:
        yield ok(f"{text}; {size(free)} are free")
    if not in_memory:
        yield warning(
            f"versions are handed over on the disk, which is slower: {SHARED_MEMORY} has no room "
            f"for {size(handed)}",
            f"Free {SHARED_MEMORY}, or make it larger (docker run --shm-size=2g)",
        )


def _in_the_way(wanted: Path, place: Path) -> Path | None:
    """Return what is no directory where the first one below `place` would be, None when nothing is."""
    below = wanted.relative_to(place).parts
    return place / below[0] if below and os.path.lexists(place / below[0]) else None


def checkpoints_at_once(config: Config) -> int:
    """Return how many checkpoints there are at most: the oldest goes when the newest is begun."""
    rule, steps = config.checkpoint, config.stop.steps
    kept = steps // rule.keep_every_steps if rule.keep_every_steps else 0
    return rule.keep + 1 + kept + int(rule.keep_best)


def record_bytes(config: Config) -> int | None:
    """Return what journal and payloads take at the end at most; None for a run without a last step."""
    number = rollouts_in_all(config)
    if number is None:
        return None
    kept, policy = number, config.retention.payloads
    if policy != "all":  # samples and evaluations are a small part of the rest
        kept = min(number, (0 if policy == "none" else policy) * config.queue.batch_size)
    payload = _PAYLOAD_BYTES + _TOKEN_BYTES * config.generator.max_context_tokens
    return number * _JOURNAL_BYTES + kept * payload


def rollouts_in_all(config: Config) -> int | None:
    """Return how many rollouts a run makes, refills left out; None when it has no last step."""
    if not config.stop.steps:
        return None
    extra = config.oversampling.rollouts_extra / config.queue.group_size
    train = int(config.stop.steps * config.queue.batch_size * (1 + extra))
    settings = config.eval
    evaluations = int(settings.at_start) + int(settings.at_end)
    if settings.every_steps:
        evaluations += config.stop.steps // settings.every_steps
    return train + evaluations * settings.num_tasks * settings.rollouts_per_task
