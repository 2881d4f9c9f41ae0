"""What the sandboxes of a run did: how long their starts took, where their time went, how they failed.

Consumes events, grants and releases in order; waits for nothing. The times between an event and its answer
are the journal's own, so that the hand-over between processes is in them; how long a start, a call or an end
took, the sandbox's owner says.

Invariant: of a sandbox that ended, the parts of `time_s` sum to the time from its wish to its end, unless
its calls overlapped.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from headway.telemetry.depth import Level
from headway.telemetry.tails import Tails, ratio

if TYPE_CHECKING:
    from headway.core.events import SandboxLost, SandboxReady, SandboxReleased, SandboxWanted, ToolEnded

TIMES = ("queued", "handed_over", "starting", "tools", "idle", "verifying", "ending")
NUM_SLOWEST = 12
USES = ("cpu_s", "memory_bytes", "disk_bytes", "num_files")


@dataclass(slots=True)
class _Open:
    """A sandbox between its wish and its end. Times are the journal's, seconds."""

    rollout: str
    attempt: int
    purpose: Literal["rollout", "verify"]
    wanted: float
    since: float  # when it last began to wait for a grant: at its wish, or when its provider refused it
    granted: float | None = None
    ready: float | None = None
    release_asked: float | None = None
    busy_s: float = 0.0  # with calls, and with being rebuilt
    num_calls: int = 0


@dataclass(frozen=True, slots=True)
class SlowStart:
    """One of the starts that took longest, by its three parts together."""

    sandbox: str
    rollout: str
    purpose: str
    t: float  # when it was ready
    queue_s: float  # from its wish to its last grant, starts that its provider refused included
    handover_s: float
    start_s: float


class Sandboxes:
    """All sandboxes of a run."""

    def __init__(self) -> None:
        self.queue_s, self.handover_s, self.start_s, self.end_s = Tails(), Tails(), Tails(), Tails()
        self.call_s, self.call_overhead_s, self.first_overhead_s = Tails(), Tails(), Tails()
        self.use = {name: Tails() for name in USES}
        self.queued, self.starting, self.live = Level(), Level(), Level()
        self.num_lost = 0
        self.num_refused = 0
        self._num_never_ready = 0  # of the lost ones
        self._time_s = dict.fromkeys(TIMES, 0.0)
        self._calls: dict[str, int] = {}  # by cause
        self._origins: dict[str, int] = {}
        self._failures: dict[str, dict[str, Any]] = {}  # by kind
        self._slowest: list[tuple[float, int, SlowStart]] = []
        self._open: dict[str, _Open] = {}
        self._of_rollout: dict[str, list[str]] = {}  # ids of the open ones

    def advance(self, t: float) -> None:
        """Account for the time until `t`."""
        for level in (self.queued, self.starting, self.live):
            level.advance(t)

    def wanted(self, t: float, event: SandboxWanted) -> None:
        """A rollout or a verifier asks for one."""
        if event.sandbox not in self._open:
            self._add(event.sandbox, _Open(event.rollout, event.attempt, event.purpose, t, t))
            self.queued.set(self.queued.value + 1)

    def granted(self, t: float, sandbox_id: str) -> None:
        """It may be made now."""
        sandbox = self._open.get(sandbox_id)
        if sandbox is None or sandbox.granted is not None:
            return
        sandbox.granted = t
        self.queue_s.add(t - sandbox.since)
        self._time_s["queued"] += t - sandbox.since
        self.queued.set(self.queued.value - 1)
        self.starting.set(self.starting.value + 1)
        self.live.set(self.live.value + 1)

    def refused(self, t: float, sandbox_id: str) -> None:
        """Its provider makes no further one now: it waits for another grant."""
        sandbox = self._open.get(sandbox_id)
        if sandbox is None or sandbox.granted is None or sandbox.ready is not None:
            return
        self.num_refused += 1
        self._time_s["starting"] += t - sandbox.granted
        sandbox.since, sandbox.granted = t, None
        self.starting.set(self.starting.value - 1)
        self.live.set(self.live.value - 1)
        self.queued.set(self.queued.value + 1)

    def ready(self, t: float, event: SandboxReady) -> bool:
        """It runs, for the first time or again in place of one that was lost; say whether that is news."""
        sandbox = self._open.get(event.sandbox)
        if sandbox is None:  # the wish is not in the journal, which may begin later
            sandbox = _Open(event.rollout, event.attempt, "rollout", t, t, t)
            self._add(event.sandbox, sandbox)
            self.starting.set(self.starting.value + 1)
            self.live.set(self.live.value + 1)
        if sandbox.ready is not None and event.origin != "rebuilt":
            return False  # told before
        self.granted(t, event.sandbox)
        self._origins[event.origin] = self._origins.get(event.origin, 0) + 1
        if sandbox.ready is not None:
            sandbox.busy_s += event.start_s
            self._time_s["starting"] += event.start_s
            return True
        sandbox.ready = t
        self.starting.set(self.starting.value - 1)
        granted = t if sandbox.granted is None else sandbox.granted
        waited, handed = granted - sandbox.wanted, max(0.0, t - granted - event.start_s)
        self.start_s.add(event.start_s)
        self.handover_s.add(handed)
        self._time_s["starting"] += event.start_s
        self._time_s["handed_over"] += handed
        slow = SlowStart(event.sandbox, event.rollout, sandbox.purpose, t, waited, handed, event.start_s)
        entry = (waited + handed + event.start_s, -len(self.start_s), slow)
        if len(self._slowest) < NUM_SLOWEST:
            heapq.heappush(self._slowest, entry)
        else:
            heapq.heappushpop(self._slowest, entry)
        return True

    def called(self, event: ToolEnded) -> None:
        """A rollout's call ended."""
        self._calls[event.cause] = self._calls.get(event.cause, 0) + 1
        self.call_s.add(event.duration_s)
        if event.overhead_s is not None:
            self.call_overhead_s.add(event.overhead_s)
        for name in self._of_rollout.get(event.rollout, ()):
            sandbox = self._open[name]
            if sandbox.attempt == event.attempt and sandbox.purpose == "rollout":
                if not sandbox.num_calls and event.overhead_s is not None:
                    self.first_overhead_s.add(event.overhead_s)
                sandbox.num_calls += 1
                sandbox.busy_s += event.duration_s
                self._time_s["tools"] += event.duration_s

    def release_asked(self, t: float, sandbox_id: str) -> None:
        """It must go."""
        if (sandbox := self._open.get(sandbox_id)) is not None and sandbox.release_asked is None:
            sandbox.release_asked = t

    def released(self, t: float, event: SandboxReleased) -> None:
        """It is gone, as asked."""
        self._gone(t, event.sandbox, event.end_s or 0.0)
        if event.end_s is not None:
            self.end_s.add(event.end_s)
        for name in USES:
            if (value := getattr(event.use, name, None)) is not None:
                self.use[name].add(value)

    def lost(self, t: float, event: SandboxLost) -> None:
        """It is gone, unasked."""
        sandbox = self._gone(t, event.sandbox, 0.0)
        self.num_lost += 1
        self._num_never_ready += sandbox is None or sandbox.ready is None
        short = event.cause if " " not in event.cause else "other"
        self.failed(event.failure or short, event.cause)

    def failed(self, kind: str, cause: str) -> None:
        """Count a failure of the infrastructure."""
        known = self._failures.setdefault(kind, {"num": 0, "last": ""})
        known["num"] += 1
        known["last"] = cause

    def forget(self, t: float, sandbox_id: str) -> None:
        """The scheduler had given it up before it answered: its time is nobody's."""
        self._gone(t, sandbox_id, 0.0)

    def rollout_over(self, t: float, rollout: str) -> None:
        """A rollout or its scoring is over: what it only waited for, it waits for no more."""
        for name in tuple(self._of_rollout.get(rollout, ())):
            if self._open[name].granted is None:
                self._gone(t, name, 0.0)

    def resumed(self, t: float) -> None:
        """A new life begins: nothing of the old one is there."""
        self._open.clear()
        self._of_rollout.clear()
        for level in (self.queued, self.starting, self.live):
            level.set(0)
            level.skip_to(t)

    def summary(self) -> dict[str, Any]:
        """Return the metrics."""
        resolved = len(self.start_s) + self._num_never_ready
        slowest = [asdict(slow) for _, _, slow in sorted(self._slowest, reverse=True)]
        return {
            "rl.sandbox.queue_s": self.queue_s.summary(),
            "rl.sandbox.handover_s": self.handover_s.summary(),
            "rl.sandbox.start_s": self.start_s.summary(),
            "rl.sandbox.first_call_overhead_s": self.first_overhead_s.summary(),
            "rl.sandbox.call_s": self.call_s.summary(),
            "rl.sandbox.call_overhead_s": self.call_overhead_s.summary(),
            "rl.sandbox.end_s": self.end_s.summary(),
            "rl.sandbox.queued": self.queued.summary(),
            "rl.sandbox.starting": self.starting.summary(),
            "rl.sandbox.live": self.live.summary(),
            "rl.sandbox.origins": dict(sorted(self._origins.items())),
            "rl.sandbox.calls": dict(sorted(self._calls.items())),
            "rl.sandbox.failures": dict(sorted(self._failures.items())),
            "rl.sandbox.refused": self.num_refused,
            "rl.sandbox.error_fraction": ratio(self.num_lost, resolved),
            "rl.sandbox.time_s": dict(self._time_s),
            **{f"rl.sandbox.use.{name}": tails.summary() for name, tails in self.use.items()},
            "rl.sandbox.slowest_starts": slowest,
        }

    def now(self) -> dict[str, float]:
        """Return what TensorBoard shows of a step, empty before there was a sandbox."""
        if not (self._open or len(self.start_s) or self._failures):
            return {}
        starts = self.start_s.summary()
        values: dict[str, float] = {
            "sandbox/live": self.live.value,
            "sandbox/starting": self.starting.value,
            "sandbox/queued": self.queued.value,
        }
        values |= {f"sandbox/failures/{kind}": known["num"] for kind, known in self._failures.items()}
        found = {f"sandbox/start_s_{name}": starts[name] for name in ("p50", "p99")}
        return values | {name: value for name, value in found.items() if value is not None}

    def _add(self, sandbox_id: str, sandbox: _Open) -> None:
        self._open[sandbox_id] = sandbox
        self._of_rollout.setdefault(sandbox.rollout, []).append(sandbox_id)

    def _gone(self, t: float, sandbox_id: str, end_s: float) -> _Open | None:
        """Close its account at `t`, `end_s` after its end began."""
        sandbox = self._open.pop(sandbox_id, None)
        if sandbox is None:
            return None
        names = self._of_rollout[sandbox.rollout]
        names.remove(sandbox_id)
        if not names:
            del self._of_rollout[sandbox.rollout]
        if sandbox.granted is None:
            self.queued.set(self.queued.value - 1)
            self._time_s["queued"] += t - sandbox.since
            return sandbox
        self.live.set(self.live.value - 1)
        if sandbox.ready is None:
            self.starting.set(self.starting.value - 1)
            self._time_s["starting"] += t - sandbox.granted
            return sandbox
        asked = t if sandbox.release_asked is None else sandbox.release_asked
        over = max(sandbox.ready, min(asked, t - end_s))
        self._time_s["ending"] += t - over
        part = "verifying" if sandbox.purpose == "verify" else "idle"
        self._time_s[part] += max(0.0, over - sandbox.ready - sandbox.busy_s)
        return sandbox
