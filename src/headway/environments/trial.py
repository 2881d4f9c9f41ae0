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
from typing import TYPE_CHECKING, Any, cast

from headway.core.clock import RunClock
from headway.core.commands import GrantSandbox, ReleaseSandbox, Resume, Score, StartRollout
from headway.core.errors import DeadlineError
from headway.core.events import (
    Event,
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    SandboxRefused,
    SandboxWanted,
    Scored,
    ScoreFailed,
    TaskOffered,
)
from headway.core.notes import AttemptFailed, RolloutSettled
from headway.core.payload import PayloadWriter, read_payload
from headway.core.records import Task
from headway.environments.faults import blamed
from headway.environments.host import HostSettings, RolloutHost
from headway.telemetry.records import Entry
from headway.telemetry.rollout_table import RolloutTable
from headway.telemetry.transcript import transcript, turn_details

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core.clock import Clock
    from headway.core.notes import Fate, Note
    from headway.core.protocols import Engine, Environment, SandboxProvider
    from headway.environments.generation import GenerationLimits
    from headway.renderers.chat import Renderer
    from headway.rewards.stage import RewardStage

_ROLLOUT, _ATTEMPT, _REPLICA = "try", 0, "engine"
_AGAIN_S = 1.0  # after a refusal of the sandboxes' provider


@dataclass(frozen=True, slots=True)
class Trial:
    """What one rollout did."""

    task: Task
    shown: dict[str, Any]  # what it said and what would be trained, as telemetry's `transcript` describes it
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
    run_id: str = "try",
    stage: RewardStage | None = None,
) -> Trial:
    """Run one rollout and score it. `run_id` labels its sandboxes; no other live process may use it.

    Raises EnvironmentSetupError when the task cannot be made, DeadlineError when that takes
    longer than `timeout_s`.
    """
    with blamed(f"making {split} task {index}"):
        task = environment.task(split, index, level)
    events: asyncio.Queue[Event] = asyncio.Queue()
    clock = RunClock()
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
            run_id,
            settings,
            stage=stage,
        )
        purpose = "eval" if split == "eval" else "train"
        command = StartRollout(
            _ROLLOUT, _ATTEMPT, _ROLLOUT, task.id, purpose, "policy", seed, temperature, _REPLICA
        )
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                group.create_task(host.run())
                await asyncio.sleep(0)  # the host's group opens
                host.start(command, task)
                seen = await _follow(host, task, events, clock)
                host.close()
        except TimeoutError:
            raise DeadlineError(
                f"one rollout and its score must end within {timeout_s} s; the trial waited for the host"
            ) from None
        finally:
            payloads.close()
        return _trial(task, command, seen, Path(folder), renderer)


async def _follow(
    host: RolloutHost, task: Task, events: asyncio.Queue[Event], clock: Clock
) -> list[tuple[float, Event]]:
    """Answer events until the rollout is scored or has failed; return them all, with their times."""
    seen: list[tuple[float, Event]] = []
    while True:
        event = await events.get()
        seen.append((clock.now(), event))
        if isinstance(event, SandboxWanted):
            host.grant(GrantSandbox(event.rollout, event.attempt, event.sandbox))
        elif isinstance(event, SandboxRefused):
            await asyncio.sleep(max(_AGAIN_S, event.retry_after_s))
            host.grant(GrantSandbox(event.rollout, event.attempt, event.sandbox))
        elif isinstance(event, RolloutParked):  # its request was lost
            host.resume(Resume(_ROLLOUT, _ATTEMPT, _REPLICA))
        elif isinstance(event, RolloutEnded):
            wanted = [item.sandbox for _, item in seen if isinstance(item, SandboxWanted)]
            for sandbox in wanted:
                host.release(ReleaseSandbox(_ROLLOUT, _ATTEMPT, sandbox))
            host.score(Score(_ROLLOUT, _ATTEMPT, 1, task.id, event.payload), task)
        elif isinstance(event, (RolloutFailed, Scored, ScoreFailed)):
            return seen


def _trial(
    task: Task, command: StartRollout, seen: list[tuple[float, Event]], folder: Path, renderer: Renderer
) -> Trial:
    events = [event for _, event in seen]
    ended = next((event for event in events if isinstance(event, RolloutEnded)), None)
    last = events[-1]
    payload = "it left no tokens" if ended is None else read_payload(folder, ended.payload)
    entries = [Entry(0, 0.0, TaskOffered(0, task.id, task.level), (command,))]
    entries += [Entry(seq, t, event, (), _notes(event)) for seq, (t, event) in enumerate(seen, 1)]
    table = RolloutTable()
    for entry in entries:
        table.feed(entry)
    (record,) = table.records()

    def decode(ids: Sequence[int]) -> str:
        return renderer.decode(ids, skip_special=False)

    return Trial(
        task,
        transcript(record, payload, decode, turn_details(entries, [record])[_ROLLOUT]),
        [] if isinstance(payload, str) else payload.transcript,
        {} if isinstance(payload, str) else payload.outcome,
        last if isinstance(last, (Scored, ScoreFailed)) else None,
        f"{last.owner}: {last.message}" if isinstance(last, RolloutFailed) else "",
        events,
    )


def _notes(event: Event) -> tuple[Note, ...]:
    """Return what the scheduler notes of an end that it does not try to mend."""
    match event:
        case RolloutFailed():
            owner, cause, message = event.owner, event.cause, event.message
        case ScoreFailed():
            owner, cause, message = "reward", event.cause, event.message
        case _:
            return ()
    fate = cast("Fate", f"failed_{owner}")
    return (
        AttemptFailed(event.rollout, event.attempt, owner, cause, message, retried=False),
        RolloutSettled(event.rollout, _ROLLOUT, fate, 0),
    )
