"""Sandboxes: whether this machine can make them, and as many as are asked for."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.clock import stopwatch, wall_time
from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import Guarantee
from headway.matching.memory import rollouts_in_flight
from headway.queue.settings import ready_places, verify_places
from headway.runtime.preflight.findings import Finding, failed, ok, warning
from headway.runtime.preflight.machine import uses_sandbox
from headway.runtime.preflight.sandbox_limits import limits, taken
from headway.sandbox.leases import own_label, read_books
from headway.sandbox.pools import WITH_THEIR_OWNER, kept_ready, make_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject
    from headway.sandbox.settings import SandboxSettings

_SLOW_S = 1.0  # to a first output: it is felt in every rollout
_WRONG_CLOCK_S = 1.0
_RUNS_NAMED = 3
_IMAGES_OF_FILES = ("bubblewrap", "local", "unsafe-local")
_UNUSED = "no environment of this run uses one"


def quota(subject: Subject) -> Iterator[Finding]:
    """How many live at once against what rollouts want, and against the limits of this process."""
    config = subject.config
    if not uses_sandbox(config):
        yield ok(_UNUSED)
        return
    most, kept = config.sandbox.max_live, verify_places(config.sandbox.max_live)
    ready = ready_places(most, kept_ready(config.sandbox), config.environment.workers)
    places, in_flight = most - kept - ready, rollouts_in_flight(config)
    group = config.queue.group_size + config.oversampling.rollouts_extra
    live = min(most, in_flight)
    findings = [*_uncontained(config.sandbox.provider), *limits(live, config.sandbox)]
    if places < group:
        findings.append(
            warning(
                f"{places} rollouts hold a sandbox at once ({kept} of {most} places are kept for verifiers"
                f"{f', {ready} for those made ahead' if ready else ''}), "
                f"so the {group} of a group wait for one another",
                f"Use sandbox.max_live = {-(-4 * group // 3)} or more",
                key="sandbox.max_live",
                value=most,
            )
        )
    yield from findings
    if not findings:
        yield ok(
            f"{places} rollouts hold a sandbox at once, of {in_flight} in flight; {kept} more places are for "
            f"verifiers{taken(live, config.sandbox)}"
        )


def _uncontained(provider: str) -> Iterator[Finding]:
    if provider == "unsafe-local":
        yield warning(
            "sandboxes contain nothing: what the model writes runs as you, with your files, your network and "
            "your processes",
            'Use sandbox.provider = "bubblewrap" or "local" on Linux, "podman" or "docker" elsewhere',
            key="sandbox.provider",
            value=provider,
        )


@dataclass(frozen=True, slots=True)
class _Tried:
    """One sandbox from its creation to its end."""

    guarantees: list[Guarantee]
    made_s: float
    first_output_s: float  # after it was made
    ended_s: float
    clock_s: float  # that its clock is ahead of ours, 0 where it is between the two times that ours showed
    left: int  # that the provider still lists


def image(subject: Subject) -> Iterator[Finding]:
    """What every sandbox begins with is there; the check that makes one builds it."""
    settings = subject.config.sandbox
    provider = settings.provider
    if not uses_sandbox(subject.config):
        yield ok(_UNUSED)
    elif provider not in _IMAGES_OF_FILES:
        named = settings.container_image or "none"
        yield ok(f"{named}, which {provider} looks for itself")
    elif not settings.image:
        yield ok("none: a sandbox begins with an empty folder")
    else:
        path = Path(settings.image).expanduser().absolute()
        kind = "folder" if path.is_dir() else "requirements file" if path.suffix == ".txt" else "archive"
        if not os.access(path, os.R_OK):
            yield from failed(
                SandboxUnavailableError(
                    "what every sandbox begins with must be there and readable",
                    value=str(path),
                    remedy="Give a folder, a tar archive or a requirements file (*.txt), or leave it empty",
                    key="sandbox.image",
                )
            )
        elif kind == "archive" and not (path.is_file() and tarfile.is_tarfile(path)):
            yield from failed(
                SandboxUnavailableError(
                    "an image that is a file must be a tar archive or a requirements file (*.txt)",
                    value=str(path),
                    remedy="Pack it with tar, or give the folder itself",
                    key="sandbox.image",
                )
            )
        else:
            yield ok(f"{path}, a {kind}" if kind != "archive" else f"{path}, an archive")


def left_over(subject: Subject) -> Iterator[Finding]:
    """Sandboxes that runs left behind whose processes are dead, by the leases on this machine."""
    if not uses_sandbox(subject.config):
        yield ok(_UNUSED)
        return
    try:
        books = read_books()
    except SandboxError as error:
        yield warning(
            f"nobody can say whether sandboxes are left over: {error.rule}",
            error.remedy or "Remove what is in its place",
            value=error.value,
        )
        return
    dead: Counter[str] = Counter()
    for book in books:
        if not book.alive and book.owner.provider not in WITH_THEIR_OWNER:  # else only the lease is left
            dead[book.owner.run] += len(book.leases)
    live = sum(len(book.leases) for book in books if book.alive)
    if number := dead.total():
        runs = ", ".join(f"{run}: {count}" for run, count in dead.most_common(_RUNS_NAMED) if count)
        yield warning(
            f"dead processes left {number} sandbox{'es'[: 2 * (number > 1)]} behind ({runs})",
            "Run `headway sandbox reap --all-dead`, which ends them; those of live runs stay",
        )
    else:
        others = f"; live processes have {live} here" if live else ""
        yield ok(f"no dead run left a sandbox behind{others}")


def sandbox(subject: Subject) -> Iterator[Finding]:
    """Make a sandbox, run a command in it and end it; say what nothing here enforces, and what it took."""
    used = any(entry.needs_sandbox for entry in subject.environments.values())
    if not used:
        yield ok(_UNUSED)
        return
    try:
        tried = asyncio.run(_try(subject.config.sandbox))
    except SandboxUnavailableError:
        raise
    except SandboxError as error:
        yield from failed(
            SandboxUnavailableError(
                f"the sandbox must run one command: {error.rule}",
                value=error.value,
                remedy=error.remedy or "Choose another folder with sandbox.directory=FOLDER",
                key="sandbox.directory",
            )
        )
        return
    yield from _enforced(tried.guarantees)
    yield from _took(tried)
    yield from _clock(tried)


def _enforced(guarantees: list[Guarantee]) -> Iterator[Finding]:
    absent = [entry for entry in guarantees if entry.level == "absent"]
    for entry in absent:
        yield warning(f"nothing here enforces the limit on {entry.name}", entry.remedy)
    if not absent:
        weak = [entry.name for entry in guarantees if entry.level == "best-effort"]
        nearly = f"; only nearly: {', '.join(weak)}" if weak else ""
        yield ok(f"a command ran in it; {len(guarantees) - len(weak)} limits are enforced{nearly}")


def _took(tried: _Tried) -> Iterator[Finding]:
    text = (
        f"one was made in {_ms(tried.made_s)}, its first command answered after {_ms(tried.first_output_s)} "
        f"more, and it was gone {_ms(tried.ended_s)} after its end was asked for"
    )
    if tried.left:
        yield warning(
            f"{text}, but its provider still lists it",
            "Run `headway sandbox reap --all-dead`, and report it as a fault",
        )
    elif tried.made_s + tried.first_output_s > _SLOW_S:
        yield warning(
            f"{text}: every rollout that uses one waits that long",
            'Let the machine do less beside it, or choose another provider (sandbox.provider="local" starts '
            "fastest)",
            key="sandbox.provider",
        )
    else:
        yield ok(text)


def _clock(tried: _Tried) -> Iterator[Finding]:
    if abs(tried.clock_s) > _WRONG_CLOCK_S:
        side = "ahead of" if tried.clock_s > 0 else "behind"
        yield warning(
            f"its clock is {abs(tried.clock_s):,.1f} s {side} this machine's",
            "Set the clock of the machine that runs the sandboxes (NTP); programs that look at the time, and "
            "certificates, fail in them",
        )
    else:
        yield ok("its clock shows this machine's time")


async def _try(settings: SandboxSettings) -> _Tried:
    """Use one sandbox. Raises SandboxError when it cannot be made, used or ended."""
    label = own_label("check")
    pool = make_pool(settings, label, warm=0)
    try:
        guarantees = await pool.preflight()
        times = [stopwatch()]
        made = await pool.create(label, {"run": label})
        try:
            times.append(stopwatch())
            before = wall_time()
            result = await made.exec(["python3", "-I", "-S", "-c", "import time; print(time.time())"])
            after = wall_time()
            times.append(stopwatch())
        finally:
            await made.terminate()
        times.append(stopwatch())
        left = len(await pool.inner.list({"run": label}))
    finally:
        close: Any = getattr(pool.inner, "close", None)
        if close is not None:
            close()
    try:
        inside = float(result.stdout)
    except ValueError:
        said = result.stderr.strip()[-200:] or result.stdout[:200]
        raise SandboxError(f"python3 ended with {result.cause} ({result.rc}): {said}") from None
    clock_s = inside - after if inside > after else min(0.0, inside - before)
    begun, made_at, ran_at, ended_at = times
    return _Tried(guarantees, made_at - begun, ran_at - made_at, ended_at - ran_at, clock_s, left)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"
