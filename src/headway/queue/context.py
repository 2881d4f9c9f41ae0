"""What a rule sees while one event is handled: settings, state, the time, and where decisions go."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.commands import Command
from headway.core.notes import Fate, Note, RolloutSettled, Warned
from headway.queue.index import Index
from headway.queue.state import GroupStage, GroupState, RolloutState, State, Station

if TYPE_CHECKING:
    from headway.queue.settings import SchedulerSettings  # noqa: TC004 - it composes the rules own settings


LATE = "~late"  # ends the id of a group of late members


@dataclass(slots=True)
class Context:
    """Handed to every rule; rules keep nothing of their own between events."""

    settings: SchedulerSettings
    state: State
    index: Index
    now: float
    commands: list[Command] = field(default_factory=list[Command])
    notes: list[Note] = field(default_factory=list[Note])

    def ask(self, command: Command) -> None:
        """Add a command."""
        self.commands.append(command)

    def note(self, note: Note) -> None:
        """Add a note."""
        self.notes.append(note)

    def warn(self, code: str, text: str) -> None:
        """Add a note that a person should see."""
        self.notes.append(Warned(code, text))

    def expect(self, key: str, seconds: float) -> None:
        """Start or restart a wait."""
        self.index.expect(key, self.now + seconds)

    def met(self, key: str) -> None:
        """End a wait, if there is one."""
        self.state.deadlines.pop(key, None)

    def settle(self, rollout: RolloutState, fate: Fate, reason: str = "") -> None:
        """Write the one end of a rollout into the ledger."""
        self.note(RolloutSettled(rollout.id, rollout.group, fate, rollout.num_tokens, reason))

    def drop_group(self, group: GroupState) -> None:
        """Forget a group whose rollouts are all settled."""
        if self.state.groups.pop(group.id, None) is not None:
            self.index.remove(group)
        self.state.requests.pop(group.request, None)
        for rollout in group.rollouts:
            self.met(f"rollout:{rollout.id}")
            self.met(f"score:{rollout.id}")
            self.met(f"cancel:{rollout.id}")
            self.state.outage.waiting.pop(rollout.id, None)
        self.met(f"task:{group.id}")
        self.met(f"signal:{group.id}")
        self.state.outage.waiting.pop(group.id, None)

    def open_group(self, group: GroupState) -> None:
        """Take in a new group."""
        self.state.groups[group.id] = group
        self.index.add(group)

    def move(self, group: GroupState, stage: GroupStage, *, dormant: bool = False) -> None:
        """Put a group into a stage."""
        self.state.outage.waiting.pop(group.id, None)
        self.index.move(group, stage, dormant=dormant)

    def place(self, group: GroupState, rollout: RolloutState, station: Station) -> None:
        """Put a rollout at a station."""
        self.state.outage.waiting.pop(rollout.id, None)
        self.index.place(group, rollout, station)

    def find(self, rollout_id: str) -> tuple[GroupState, RolloutState] | None:
        """Return a live rollout and its group, None where there is no such rollout any more."""
        return self.index.rollouts.get(rollout_id)


def origin(name: str) -> str:
    """Return the id of the group or rollout that one of this id draws the tokens of: mostly its own.

    `t000006~1` takes the task of the lost t000006 again; `t000006~late` has the late members of t000006.
    """
    group, tilde, rest = name.partition("~")
    return group + (rest[rest.index(".") :] if tilde and "." in rest else "")


def rollout_seed(seed: int, rollout: str, draws: int) -> int:
    """Return the sampling seed of an attempt at a rollout, 31 bits, the same in every life of a run.

    An attempt that was lost to a crash or to the infrastructure is made again with the same seed.
    """
    digest = hashlib.sha256(f"{seed}/{rollout}/{draws}".encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
