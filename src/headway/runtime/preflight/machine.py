"""Cores and memory: what a run would take of them, and what there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.arguments import environments_of
from headway.core.errors import UserError
from headway.environments.registry import may_need_sandbox
from headway.matching.memory import MemoryEstimate, estimate_memory
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway.config.compose import Config
    from headway.runtime.preflight.subject import Subject

_GIB = 1 << 30


def cores(subject: Subject) -> Iterator[Finding]:
    """Threads that were asked for do not exceed the cores that this process may use."""
    there = len(os.sched_getaffinity(0))
    generator, trainer = subject.config.generator, subject.config.trainer
    generating, training = generator.replicas * max(1, generator.threads), max(1, trainer.threads)
    both_set = generator.threads > 0 and trainer.threads > 0
    if max(generating, training, generating + training if both_set else 0) <= there:
        divided = "as set" if both_set else "divided by who has something to do"
        yield ok(f"{_cores(there)}, {divided}")
        return
    key = "trainer.threads" if training > there >= generating else "generator.threads"
    if key == "generator.threads" and not generator.threads:
        key = "generator.replicas"
    yield warning(
        f"generators take {generating} and the trainer {training} threads, of {_cores(there)}: all get "
        "slower",
        "Set generator.threads and trainer.threads to 0, which divides the cores, or use fewer replicas",
        key=key,
    )


def _cores(number: int) -> str:
    return f"{number} core{'s'[: number > 1]}"


def estimate_for(subject: Subject) -> MemoryEstimate:
    """Return what the run would take."""
    return estimate_memory(
        subject.facts,
        subject.config,
        needs_sandbox=uses_sandbox(subject.config),
        context_tokens=subject.context_tokens,
    )


def uses_sandbox(config: Config) -> bool:
    """Say whether any environment of the run may use a sandbox."""
    return any(may_need_sandbox(name, args) for _, name, args in environments_of(config))


def memory(subject: Subject) -> Iterator[Finding]:
    """What the run takes (matching/memory.py) against what is free and what the machine or container has."""
    estimate = estimate_for(subject)
    total, free = memory_bytes()
    sums = estimate.processes
    generators, trainers = (
        sum(size for name, size in sums.items() if name.startswith(role)) for role in ("generator", "trainer")
    )
    others = estimate.num_bytes - trainers - generators
    text = (
        f"about {_gib(estimate.num_bytes)} with every part that has a limit at its limit (trainer "
        f"{_gib(trainers)}, generators {_gib(generators)}, the rest {_gib(others)})"
    )
    remedy = (
        "Lower trainer.micro_batch_tokens, generator.max_running, generator.max_context_tokens or "
        "sandbox.max_live; headway check --memory shows what takes how much"
    )
    if estimate.least_bytes > total:
        yield from failed(
            UserError(
                f"the run must fit the memory: it takes {_gib(estimate.least_bytes)} at least, and there are "
                f"{_gib(total)}",
                remedy="Lower trainer.micro_batch_tokens or generator.replicas, train LoRA factors and not "
                "every weight, or use a smaller model; headway check --memory shows what takes how much",
            )
        )
    elif estimate.num_bytes > free:
        yield warning(f"{text}, and {_gib(free)} are free", remedy)
    else:
        yield ok(f"{text} of {_gib(free)} that are free")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"


def memory_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Return the bytes of memory that this process may have at all, and that are free now.

    The machine's, or those of the control group with the narrowest limit around this process.
    """
    lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    facts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    total = facts["MemTotal"]
    free = facts.get("MemAvailable", facts["MemFree"])
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for folder, limit_name, used_name in _groups(proc, groups, "memory", *names):
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is not None and limit < total:
            cached = _statistics(folder / "memory.stat").get("inactive_file", 0)
            total, free = limit, min(free, limit - (used or 0) + cached)
    return total, max(0, free)


def processes_free(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> tuple[int | None, str]:
    """Return how many more processes there may be, and what says so; None where nothing does.

    The narrowest of the kernel's limits and those of the control groups around this process.
    """
    running = sum(name.isdigit() for name in os.listdir(proc))
    found = [
        (max(0, limit - running), f"the kernel setting kernel.{name}")
        for name in ("pid_max", "threads-max")
        if (limit := _number(proc / "sys" / "kernel" / name)) is not None
    ]
    names = "pids.max", "pids.current"
    for folder, limit_name, used_name in _groups(proc, groups, "pids", names, names):
        if (limit := _number(folder / limit_name)) is not None:
            left = limit - (_number(folder / used_name) or 0)
            found.append((max(0, left), f"the limit of the control group {folder}"))
    return min(found, default=(None, ""))


def _groups(
    proc: Path, groups: Path, controller: str, second: tuple[str, str], first: tuple[str, str]
) -> Iterator[tuple[Path, str, str]]:
    """Yield the control groups around this process, with the names of limit and use.

    These names are `second` in version 2 of control groups and `first` in version 1.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root, names = groups, second
        if controllers:
            if controller not in controllers.split(","):
                continue
            root, names = groups / controller, first
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root):
            yield folder, *names
            folder = folder.parent


def _number(file: Path) -> int | None:
    """Return a group's number, None for `max` and where there is no such file."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _statistics(file: Path) -> Mapping[str, int]:
    try:
        pairs = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
