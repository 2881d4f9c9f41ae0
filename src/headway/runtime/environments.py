"""Which environment worker has which rollout, and what a dead one leaves unanswered.

Commands to a worker that died wait until it is connected again. What it was doing is told as failed: rollouts
and scores by the events that an attempt ends by, sandboxes as lost. A task is asked for again, for the same
request has the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import (
    Cancel,
    GrantSandbox,
    Park,
    ReleaseSandbox,
    RequestTask,
    Resume,
    Score,
    StartRollout,
)
from headway.core.events import (
    Event,
    RolloutEnded,
    RolloutFailed,
    SandboxLost,
    Scored,
    ScoreFailed,
    TaskOffered,
    TasksExhausted,
)
from headway.core.segments import group_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.queue.state import SandboxState
    from headway.runtime.wire import Link

CAUSE = "worker_lost"

OfRollout = Cancel | Park | Resume | GrantSandbox | ReleaseSandbox | Score


class Environments:
    """All environment workers of one life."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._links: dict[str, Link] = {}
        self._held: dict[str, list[RequestTask | StartRollout | OfRollout]] = {}  # of workers that are down
        self._owner: dict[str, str] = {}  # rollout -> worker
        self._asked: dict[str, StartRollout | Score] = {}  # by rollout, until it is answered
        self._tasks: dict[int, RequestTask] = {}  # by request, until it is answered
        self._watched: int | None = None  # tokens of a rollout that verdicts tell of, once it changed

    def connect(self, name: str, link: Link) -> None:
        """Make a worker reachable; one of a known name takes the place of one that died."""
        if name not in self._names:
            self._names.append(name)
        self._links[name] = link
        if self._watched is not None:
            link.send("watch", self._watched)
        for command in self._held.pop(name, []):
            link.send("command", command)

    def send(self, command: RequestTask | StartRollout | OfRollout) -> None:
        """Send a command to the worker that it concerns."""
        match command:
            case RequestTask():
                self._tasks[command.request] = command
                name = self._of_request(command)
            case StartRollout():
                name = self._names[self._number(command) % len(self._names)]
                self._owner[command.rollout] = name
                self._asked[command.rollout] = command
            case _:
                name = self._owner.get(command.rollout, self._names[0])
                if isinstance(command, Score):
                    self._owner[command.rollout] = name
                    self._asked[command.rollout] = command
        if name in self._held:
            self._held[name].append(command)
        else:
            self._links[name].send("command", command)

    def watch(self, max_tokens: int) -> None:
        """Let the workers tell of rollouts that sample more than so many tokens; 0 for none.

        Whether they are pruned is the scheduler's to say.
        """
        if max_tokens == self._watched:
            return
        self._watched = max_tokens
        for name, link in self._links.items():
            if name not in self._held:
                link.send("watch", max_tokens)

    def heard(self, event: Event) -> None:
        """Note what an event answers."""
        match event:
            case TaskOffered() | TasksExhausted():
                self._tasks.pop(event.request, None)
            case RolloutEnded() | RolloutFailed() | Scored() | ScoreFailed():
                asked = self._asked.get(event.rollout)
                tries = isinstance(event, (Scored, ScoreFailed))
                if asked is not None and asked.attempt == event.attempt and isinstance(asked, Score) == tries:
                    del self._asked[event.rollout]
            case _:
                pass

    def settled(self, rollout: str) -> None:
        """Forget a rollout."""
        self._owner.pop(rollout, None)
        self._asked.pop(rollout, None)

    def lost(self, name: str, sandboxes: Mapping[str, SandboxState]) -> list[Event]:
        """Note that a worker died and is started anew; return what its death means for what it was doing.

        Args:
            name: of the worker.
            sandboxes: those that the scheduler knows of.
        """
        self._held[name] = [task for task in self._tasks.values() if self._of_request(task) == name]
        words = f"environment worker {name} died"
        found: list[Event] = [
            SandboxLost(sandbox.rollout, sandbox.attempt, sandbox_id, CAUSE)
            for sandbox_id, sandbox in sandboxes.items()
            if sandbox.stage != "wanted" and self._owner.get(sandbox.rollout) == name
        ]
        for rollout, asked in self._asked.items():
            if self._owner.get(rollout) != name:
                continue
            if isinstance(asked, Score):
                found.append(ScoreFailed(rollout, asked.attempt, asked.tries, CAUSE, words))
            else:
                found.append(RolloutFailed(rollout, asked.attempt, "infrastructure", CAUSE, words))
        return found

    def _of_request(self, command: RequestTask) -> str:
        return self._names[command.request % len(self._names)]

    def _number(self, command: StartRollout) -> int:
        found = group_of(command.group)
        return 0 if found is None else found[1]
