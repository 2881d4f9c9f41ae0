"""One rollout outside a run, for `headway env try` and for people who write environments.

Consumes the host's events and answers them as the scheduler would: grants every sandbox, resumes what the
engine lost, scores what ended, releases what is left. Waits for the score or the failure; `timeout_s` bounds
the whole.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.commands import GrantSandbox, ReleaseSandbox, Resume, Score, StartRollout
from headway.core.errors import DeadlineError
from headway.core.events import (
    Event,
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    SandboxWanted,
    Scored,
    ScoreFailed,
)
from headway.core.payload import PayloadWriter, read_payload
from headway.core.records import Task
from headway.environments.host import HostSettings, RolloutHost
from headway.renderers.recorder import Piece, pieces

if TYPE_CHECKING:
    from headway.core.protocols import Engine, Environment, SandboxProvider
    from headway.environments.generation import GenerationLimits
    from headway.renderers.chat import Renderer

_ROLLOUT, _REPLICA = "try", "engine"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one rollout did."""

    task: Task
    branches: list[list[Piece]]  # one a training sample: runs of text, trained or masked
    transcript: list[dict[str, Any]]  # messages
    outcome: dict[str, Any]  # what the verifier got
    score: Scored | ScoreFailed | None  # None when the rollout itself failed
    failure: str  # why, empty when it ended
    events: list[Event]  # everything that the host told, in order


async def try_once(
    environment: Environment,
    engine: Engine,
    renderer: Renderer,
    provider: SandboxProvider,
    limits: GenerationLimits,
    *,
    settings: HostSettings | None = None,
    split: str = "train",
    index: int = 0,
    level: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    timeout_s: float = 300.0,
) -> Trial:
    """Run one rollout and score it.

    Raises DeadlineError when that takes longer than `timeout_s`.
    """
    task = environment.task(split, index, level)
    events: asyncio.Queue[Event] = asyncio.Queue()
    with tempfile.TemporaryDirectory(prefix="headway-try-") as folder:
        payloads = PayloadWriter(Path(folder), "payloads")
        host = RolloutHost(
            environment,
            {_REPLICA: engine},
            renderer,
            provider,
            payloads,
            Path(folder),
            events.put_nowait,
            limits,
            "try",
            settings,
        )
        purpose = "eval" if split == "eval" else "train"
        command = StartRollout(_ROLLOUT, 1, _ROLLOUT, task.id, purpose, "policy", seed, temperature, _REPLICA)
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                group.create_task(host.run())
                await asyncio.sleep(0)  # the host's group opens
                host.start(command, task)
                seen = await _follow(host, task, events)
                host.close()
        except TimeoutError:
            raise DeadlineError(
                f"one rollout and its score must end within {timeout_s} s; the trial waited for the host"
            ) from None
        finally:
            payloads.close()
        return _trial(task, seen, Path(folder), renderer)


async def _follow(host: RolloutHost, task: Task, events: asyncio.Queue[Event]) -> list[Event]:
    """Answer events until the rollout is scored or has failed; return them all."""
    seen: list[Event] = []
    while True:
        event = await events.get()
        seen.append(event)
        if isinstance(event, SandboxWanted):
            host.grant(GrantSandbox(event.rollout, event.attempt, event.sandbox))
        elif isinstance(event, RolloutParked):  # its request was lost
            host.resume(Resume(_ROLLOUT, 1, _REPLICA))
        elif isinstance(event, RolloutEnded):
            wanted = [item.sandbox for item in seen if isinstance(item, SandboxWanted)]
            for sandbox in wanted:
                host.release(ReleaseSandbox(_ROLLOUT, 1, sandbox))
            host.score(Score(_ROLLOUT, 1, 1, task.id, event.payload), task)
        elif isinstance(event, (RolloutFailed, Scored, ScoreFailed)):
            return seen


def _trial(task: Task, seen: list[Event], folder: Path, renderer: Renderer) -> Trial:
    ended = next((event for event in seen if isinstance(event, RolloutEnded)), None)
    last = seen[-1]
    if ended is None:
        failure = f"{last.owner}: {last.message}" if isinstance(last, RolloutFailed) else ""
        return Trial(task, [], [], {}, None, failure, seen)
    payload = read_payload(folder, ended.payload)

    def shown(ids: Any) -> str:
        return renderer.decode(ids, skip_special=False)

    branches = [pieces(sample, shown) for sample in payload.samples]
    score = last if isinstance(last, (Scored, ScoreFailed)) else None
    return Trial(task, branches, payload.transcript, payload.outcome, score, "", seen)
