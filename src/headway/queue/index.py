"""The index: what the rules look up at every event, so that none of them has to scan the state.

It holds nothing of its own: `Index(state)` builds it anew, and a property test compares the two after every
event. It is not in the snapshot. Cost per event does not depend on how many rollouts are in flight, apart
from the heap of deadlines, which costs the logarithm.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headway.queue.state import GroupStage, GroupState, RolloutState, SandboxState, State, Station

Shelf = Literal["requested", "running", "signalling", "queued", "training", "trained", "dormant"]
_SHELVES: tuple[Shelf, ...] = (
    "requested",
    "running",
    "signalling",
    "queued",
    "training",
    "trained",
    "dormant",
)
ADMITTED: tuple[Shelf, ...] = ("requested", "running", "signalling")
OVER = ("scored", "lost")  # stations of a running group's rollouts that wait for nothing more
_HEAP_SLACK = 64  # dead entries that the heap of deadlines may hold beside as many as it has live ones


class Index:
    """Groups by where they are, counts, sandboxes in line, deadlines by time."""

    def __init__(self, state: State) -> None:
        self.rebuild(state)

    def rebuild(self, state: State) -> None:
        """Build it anew from the state."""
        self._deadlines = state.deadlines
        self.train: dict[Shelf, dict[str, GroupState]] = {shelf: {} for shelf in _SHELVES}
        self.evals: dict[Shelf, dict[str, GroupState]] = {shelf: {} for shelf in _SHELVES}
        self.rollouts: dict[str, tuple[GroupState, RolloutState]] = {}  # of all groups, by rollout
        self.complete: dict[str, GroupState] = {}  # running, and every rollout scored or lost
        self.met: dict[str, GroupState] = {}  # running, and as many scored as it needs, but not complete
        self.parked: dict[str, RolloutState] = {}  # rollouts that hold no engine memory
        self.num_running = 0  # train rollouts at station running
        self.busy: dict[str, int] = {}  # rollouts at station running, of any purpose, by replica
        self.load: dict[str, int] = {}  # rollouts of running groups, by replica
        self._loaded: dict[str, tuple[str, int]] = {}
        self.num_queued_tokens = 0  # sampled, of the train groups that wait
        self.num_late = 0  # of the admitted train groups, those that partial rollouts set aside
        self.judged_at: tuple[int, int] | None = None  # lineage and step at which queued groups were judged
        self.wanted: dict[str, dict[str, SandboxState]] = {"rollout": {}, "verify": {}}  # first come first
        self.num_live_sandboxes = 0
        self.num_starting_sandboxes = 0  # of the live ones, those granted and not ready
        self._set_heap()
        for group in state.groups.values():
            self.add(group)
        for name, sandbox in state.sandboxes.items():
            self.add_sandbox(name, sandbox)

    # --- groups and rollouts

    def add(self, group: GroupState) -> None:
        """Take in a group with its rollouts."""
        for rollout in group.rollouts:
            self.rollouts[rollout.id] = (group, rollout)
            self._count(group, rollout, 1)
        self._shelve(group)

    def remove(self, group: GroupState) -> None:
        """Forget a group."""
        for rollout in group.rollouts:
            del self.rollouts[rollout.id]
            self._count(group, rollout, -1)
        self._unshelve(group)

    def move(self, group: GroupState, stage: GroupStage, *, dormant: bool = False) -> None:
        """Put a group into a stage."""
        self._unshelve(group)
        group.stage, group.dormant = stage, dormant
        self._shelve(group)

    def place(self, group: GroupState, rollout: RolloutState, station: Station) -> None:
        """Put a rollout of a known group at a station."""
        self._count(group, rollout, -1)
        rollout.station = station
        self._count(group, rollout, 1)
        if group.stage == "running" and not group.dormant:
            self._look(group)

    def set_late(self, group: GroupState) -> None:
        """Count a group as late from now on."""
        self._unshelve(group)
        group.late = True
        self._shelve(group)

    def reassign(self, group: GroupState, replica: str) -> None:
        """Send a group's further requests to another replica."""
        self.remove(group)
        group.replica = replica
        self.add(group)

    def shrink(self, group: GroupState, kept: list[RolloutState]) -> None:
        """Leave a group only these of its rollouts."""
        self.remove(group)
        group.rollouts = kept
        self.add(group)

    def on(self, shelf: Shelf) -> list[GroupState]:
        """Return the train groups on a shelf, by id: the order must not depend on how the index was built."""
        return sorted(self.train[shelf].values(), key=lambda group: group.id)

    def done(self) -> list[GroupState]:
        """Return the running groups whose rollouts are all scored or lost, by id."""
        return sorted(self.complete.values(), key=lambda group: group.id)

    @property
    def num_eval_groups(self) -> int:
        """Groups of the evaluation in progress."""
        return sum(len(groups) for groups in self.evals.values())

    @property
    def num_admitted(self) -> int:
        """Train groups that are admitted and not settled."""
        return sum(len(self.train[shelf]) for shelf in ADMITTED)

    @property
    def num_ahead(self) -> int:
        """Train groups between admission and trainer, those left out that were set aside."""
        return self.num_admitted - self.num_late + len(self.train["queued"])

    @property
    def waits(self) -> bool:
        """Whether a group waits for a task, a rollout or its advantages."""
        for groups in (self.train, self.evals):
            if groups["signalling"] or any(not group.rollouts for group in groups["requested"].values()):
                return True
        return len(self.train["running"]) + len(self.evals["running"]) > len(self.complete)

    def _shelves(self, group: GroupState) -> dict[Shelf, dict[str, GroupState]]:
        return self.train if group.purpose == "train" else self.evals

    def _shelve(self, group: GroupState) -> None:
        self._shelves(group)["dormant" if group.dormant else group.stage][group.id] = group
        if group.stage == "queued" and group.purpose == "train":
            self.num_queued_tokens += group.num_tokens
        self.num_late += group.late and group.stage in ADMITTED
        if group.stage == "running" and not group.dormant:
            self.load[group.replica] = self.load.get(group.replica, 0) + len(group.rollouts)
            self._loaded[group.id] = (group.replica, len(group.rollouts))
            self._look(group)

    def _unshelve(self, group: GroupState) -> None:
        if self._shelves(group)["dormant" if group.dormant else group.stage].pop(group.id, None) is None:
            return
        if group.stage == "queued" and group.purpose == "train":
            self.num_queued_tokens -= group.num_tokens
        self.num_late -= group.late and group.stage in ADMITTED
        self.complete.pop(group.id, None)
        self.met.pop(group.id, None)
        if (loaded := self._loaded.pop(group.id, None)) is not None:
            replica, num_rollouts = loaded
            self.load[replica] -= num_rollouts
            if not self.load[replica]:
                del self.load[replica]

    def _look(self, group: GroupState) -> None:
        self.complete.pop(group.id, None)
        self.met.pop(group.id, None)
        stations = [rollout.station for rollout in group.rollouts]
        num_scored = stations.count("scored")
        if sum(map(stations.count, OVER)) == len(stations):
            self.complete[group.id] = group
        elif 0 < group.target <= num_scored:
            self.met[group.id] = group

    def _count(self, group: GroupState, rollout: RolloutState, sign: int) -> None:
        if rollout.station == "running":
            self.busy[group.replica] = self.busy.get(group.replica, 0) + sign
            if not self.busy[group.replica]:
                del self.busy[group.replica]
        if rollout.station == "running" and group.purpose == "train":
            self.num_running += sign
        elif rollout.station == "parked":
            if sign > 0:
                self.parked[rollout.id] = rollout
            else:
                self.parked.pop(rollout.id, None)

    # --- sandboxes

    def add_sandbox(self, name: str, sandbox: SandboxState) -> None:
        """Take in a sandbox that is wanted or lives."""
        if sandbox.stage == "wanted":
            self.wanted[sandbox.purpose][name] = sandbox
        else:
            self.num_live_sandboxes += 1
            self.num_starting_sandboxes += sandbox.stage == "granted"

    def remove_sandbox(self, name: str, sandbox: SandboxState) -> None:
        """Forget a sandbox."""
        if self.wanted[sandbox.purpose].pop(name, None) is None:
            self.num_live_sandboxes -= 1
            self.num_starting_sandboxes -= sandbox.stage == "granted"

    def grant(self, name: str, sandbox: SandboxState) -> None:
        """Let the wanted sandbox start."""
        self.remove_sandbox(name, sandbox)
        sandbox.stage = "granted"
        self.add_sandbox(name, sandbox)

    def started(self, sandbox: SandboxState, stage: Literal["ready", "releasing"]) -> None:
        """A granted sandbox runs, or must go; or one that runs must."""
        self.num_starting_sandboxes -= sandbox.stage == "granted"
        sandbox.stage = stage

    def ungrant(self, state: State, name: str, sandbox: SandboxState) -> None:
        """Put a granted sandbox back to its place in the line, which is the order of the wishes."""
        self.remove_sandbox(name, sandbox)
        sandbox.stage = "wanted"
        self.wanted[sandbox.purpose] = {
            name: other
            for name, other in state.sandboxes.items()
            if other.stage == "wanted" and other.purpose == sandbox.purpose
        }

    # --- deadlines

    def expect(self, key: str, at_s: float) -> None:
        """Set a deadline; one that only moves back keeps its place in the heap until that comes up."""
        self._deadlines[key] = at_s
        if self._placed.get(key, inf) <= at_s:
            return
        self._placed[key] = at_s
        heapq.heappush(self.heap, (at_s, key))
        if len(self.heap) > 2 * len(self._deadlines) + _HEAP_SLACK:
            self._set_heap()

    def earliest(self) -> float | None:
        """Return the time of the first deadline."""
        heap, deadlines = self.heap, self._deadlines
        while heap:
            at, key = heap[0]
            due_s = deadlines.get(key)
            if due_s == at:
                return at
            heapq.heappop(heap)
            if self._placed.get(key) == at:
                del self._placed[key]
                if due_s is not None:
                    self._placed[key] = due_s
                    heapq.heappush(heap, (due_s, key))
        return None

    def _set_heap(self) -> None:
        self._placed = dict(self._deadlines)  # key -> time of its earliest entry in the heap
        self.heap: list[tuple[float, str]] = [(at, key) for key, at in self._deadlines.items()]
        heapq.heapify(self.heap)

    def due(self, now: float) -> list[str]:
        """Return the keys of the deadlines that have passed, earliest first."""
        keys: list[str] = []
        while (at := self.earliest()) is not None and at <= now:
            key = heapq.heappop(self.heap)[1]
            self._placed.pop(key, None)
            keys.append(key)
        return list(dict.fromkeys(keys))
