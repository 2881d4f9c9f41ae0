"""Disk: what checkpoints, payloads and the journal take, and where versions are handed over."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from headway.core.errors import RunDirectoryError
from headway.matching.memory import checkpoint_bytes, handover_bytes
from headway.runtime.life import SHARED_MEMORY, fits_shared_memory
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.config.compose import Config
    from headway.runtime.preflight.subject import Subject

_MB = 1_000_000
_TOKEN_BYTES = 9 + 6  # id, mask and log-prob; its text in the transcript
_ROLLOUT_BYTES = 4_000  # of the payload's head and of the journal's records, measured


def disk(subject: Subject) -> Iterator[Finding]:
    """Free space against what a whole run writes."""
    config, place = subject.config, subject.run_dir
    if not os.access(place, os.W_OK):
        yield from failed(
            RunDirectoryError(
                f"the run directory {config.run.dir} cannot be made: {place} is not writable",
                remedy="Choose a writable place with run.dir=DIRECTORY",
                key="run.dir",
            )
        )
        return
    free = shutil.disk_usage(place).free
    handed = handover_bytes(subject.facts, config)
    in_memory = fits_shared_memory(handed)
    one = checkpoint_bytes(subject.facts, config)
    checkpoints = one * (config.checkpoint.keep + 1)  # the oldest goes when the newest is begun
    rollouts = rollouts_in_all(config)
    records = 0 if rollouts is None else rollouts * rollout_bytes(config)
    needed = checkpoints + records + (0 if in_memory else handed)
    each = f"{config.checkpoint.keep + 1} checkpoints of {one / _MB:,.0f} MB"
    runs_on = "" if rollouts is not None else ", and rollouts without end (stop.steps is 0)"
    text = f"{each}, rollouts of {records / _MB:,.0f} MB at most{runs_on}" if rollouts else f"{each}{runs_on}"
    if one + (0 if in_memory else handed) > free:
        yield from failed(
            RunDirectoryError(
                f"there must be room for a checkpoint of {one / _MB:,.0f} MB, and "
                f"{free / _MB:,.0f} MB are free",
                remedy="Free some space, or choose another disk with run.dir=DIRECTORY",
                key="run.dir",
            )
        )
        return
    if needed > free:
        yield warning(
            f"{text}: {needed / _MB:,.0f} MB, and {free / _MB:,.0f} MB are free",
            "Free some space, choose another disk with run.dir=DIRECTORY, or lower checkpoint.keep",
            key="run.dir",
        )
    else:
        yield ok(f"{text}; {free / 1000 / _MB:,.1f} GB are free")
    if not in_memory:
        yield warning(
            f"versions are handed over on the disk, which is slower: {SHARED_MEMORY} has no room for "
            f"{handed / _MB:,.0f} MB",
            f"Free {SHARED_MEMORY}, or make it larger (docker run --shm-size=2g)",
        )


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


def rollout_bytes(config: Config) -> int:
    """Return what one rollout leaves on the disk at most: payload and journal."""
    return _ROLLOUT_BYTES + _TOKEN_BYTES * config.generator.max_context_tokens
