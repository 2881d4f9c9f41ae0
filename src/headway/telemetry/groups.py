"""Groups: do they carry a signal, are they solved, how much slower is their slowest rollout."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from headway.telemetry.ledger import KEPT
from headway.telemetry.tails import Mean, Tails, ratio

if TYPE_CHECKING:
    from headway.core.events import GroupSignal
    from headway.core.notes import GroupSettled, GroupSplit, RolloutRevived, RolloutSettled
    from headway.telemetry.rollouts import FinishedRollout

_NOT_REJECTED = KEPT | {"stopped", "unused"}  # ends that say nothing against the rollout


class Groups:
    """Statistics of train groups.

    A group has zero advantage when GroupSignal gave every rollout 0. Voided groups have no advantages and
    are left out of that share; they count for the solve rates. `decided` counts groups with a signal answer.
    """

    def __init__(self, solved_reward: float) -> None:
        self._solved_reward = solved_reward
        self._zero: dict[str, bool] = {}  # signalled, not settled
        self._latencies: dict[str, list[float]] = {}
        self._members: dict[str, set[str]] = {}  # of groups that are not settled: scored rollouts
        self._accepted: set[str] = set()  # rollouts that entered the queue
        self._rejected: set[str] = set()  # of those: discarded later
        self._straggler = Tails()
        self._made, self._made_spread = Mean(), Mean()  # of rewards that were made of whole groups
        self.num_decided = 0
        self.num_zero = 0
        self.num_settled = 0
        self.num_all_solved = 0
        self.num_all_failed = 0
        self.num_refills = 0
        self._num_scored = 0  # rollouts of settled groups
        self._num_accepted = 0

    def finished(self, rollout: FinishedRollout) -> None:
        """A train rollout was scored."""
        self._latencies.setdefault(rollout.group, []).append(rollout.end_to_end_s)
        self._members.setdefault(rollout.group, set()).add(rollout.rollout)

    def signalled(self, event: GroupSignal) -> None:
        """A group has its advantages."""
        self._zero[event.group] = not any(advantage for _, advantage in event.advantages)
        if event.rewards:
            self._made.add(fmean(event.rewards))
            self._made_spread.add(pstdev(event.rewards))

    def settled(self, note: GroupSettled) -> None:
        """All rollouts of a train group are scored or lost."""
        zero = self._zero.pop(note.group, None)
        latencies = self._latencies.pop(note.group, [])
        members = self._members.pop(note.group, set())
        self._num_scored += note.num_rollouts
        if note.fate == "queued":
            self._accepted |= members
            self._num_accepted += note.num_rollouts
        if note.fate != "voided":
            self.num_decided += 1
            self.num_zero += (note.fate == "filtered") if zero is None else zero
        if note.num_rollouts:
            self.num_settled += 1
            self.num_all_solved += note.min_reward >= self._solved_reward
            self.num_all_failed += note.max_reward < self._solved_reward
        if len(latencies) > 1 and sum(latencies) > 0.0:
            self._straggler.add(max(latencies) * len(latencies) / sum(latencies))

    def rollout_settled(self, note: RolloutSettled) -> None:
        """A rollout that had entered the queue may be discarded after all."""
        if note.rollout in self._accepted:
            if note.fate not in _NOT_REJECTED:
                self._rejected.add(note.rollout)
        elif note.group in self._members:
            self._members[note.group].discard(note.rollout)

    def split(self, note: GroupSplit) -> None:
        """Late members of an oversampled group go on as a group of their own."""
        moved = self._members.get(note.group, set()) & set(note.rollouts)
        self._members.setdefault(note.into, set()).update(moved)
        self._members.get(note.group, set()).difference_update(moved)

    def rollout_revived(self, note: RolloutRevived) -> None:
        """A settlement is taken back."""
        self._rejected.discard(note.rollout)

    def acceptance(self) -> float | None:
        """Share of the rollouts of settled groups that entered the queue and were not discarded later."""
        return ratio(self._num_accepted - len(self._rejected), self._num_scored)

    def summary(self) -> dict[str, object]:
        """Return the rl.group keys and rl.pass_at.n."""
        solved_any = self.num_settled - self.num_all_failed
        return {
            "rl.group.zero_advantage_fraction": ratio(self.num_zero, self.num_decided),
            "rl.group.all_solved_fraction": ratio(self.num_all_solved, self.num_settled),
            "rl.group.all_failed_fraction": ratio(self.num_all_failed, self.num_settled),
            "rl.group.straggler_ratio": self._straggler.summary(),
            "rl.group.settled": self.num_settled,
            "rl.group.reward_mean": self._made.value,
            "rl.group.reward_std": self._made_spread.value,
            "rl.pass_at.n": ratio(solved_any, self.num_settled),
        }
