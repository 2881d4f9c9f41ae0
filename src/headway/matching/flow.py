"""What a run settles to: rates, what is in flight, latencies, and how old what is trained is."""

from __future__ import annotations

from dataclasses import dataclass

from headway.matching.load import Replica


@dataclass(frozen=True, slots=True)
class Flow:
    """A steady state; rates are a second, of the whole run."""

    production: float  # rollouts scored
    effective: float  # of these, those that train
    active: float  # rollouts that the trainer takes while it computes
    wall: float  # and by the clock
    period_s: float  # of a step, waiting included
    compute_s: float
    publish_s: float  # of a step
    wait: float  # share of the trainer's time
    blocked: float  # share of production that admission holds back
    rows: float  # rollouts that a step trains
    row_tokens: float  # of a trained rollout, prompt and observations included
    row_squares: float  # mean square of that
    trained_tokens: float  # sampled ones, of a trained rollout
    zero: float  # groups without signal
    lost_to_zero: float  # of the groups, those that are dropped for it
    stale: float  # groups too old
    failed: float  # rollouts that are lost
    cancelled: float  # rollouts started and not needed, of all that are started
    queued: float  # groups that wait for the trainer
    groups_running: float
    in_flight: float
    sandboxes: float  # alive at once
    replica: Replica
    capped_by: str  # "", "kv", "setting", "sandboxes", "sandbox_starts", "prefill"
    latencies: list[float]  # of rollouts, start to score
    group_s: list[float]  # of groups
    spans: list[tuple[float, float, int]]  # of rollouts: seconds, those of its group, sampled tokens
    first_token_s: float
    start_s: float  # of a sandbox
    waited_s: float  # that a rollout stands in line
    line_s: float  # of that, before its first token
    lag_steps: float  # of a trained group's staleness, what is not its own life: see `ages`

    def ages(self, bound: int) -> dict[int, float]:
        """Return the share of trained rollouts by the age of the version that they began with, steps.

        A group begins when a version has just been taken up and leaves when a batch is complete: the steps
        between are its life and its time in the queue over the period, less the time that the trainer waits.
        """
        shares: dict[int, float] = {}
        for life in self.group_s:
            steps = max(0.0, (life - self.line_s) / self.period_s + self.lag_steps)
            low = int(steps)
            for age, weight in ((low, low + 1 - steps), (low + 1, steps - low)):
                if weight > 0.0 and age <= bound:
                    shares[age] = shares.get(age, 0.0) + weight
        total = sum(shares.values()) or 1.0
        return {age: shares[age] / total for age in sorted(shares)}

    def token_ages(self, bound: int) -> dict[int, float]:
        """Return the share of trained tokens by the age of their own version: made evenly over its rollout.

        No token is older than the version that its rollout began with.
        """
        shares: dict[int, float] = {}
        for took_s, life, num_tokens in self.spans:
            steps = max(0.0, (life - self.line_s) / self.period_s + self.lag_steps)
            for begun, chance in _split(steps):
                if begun > bound:
                    continue
                for place in range(_PLACES):
                    later = (place + 0.5) / _PLACES * took_s / self.period_s
                    for age, weight in _split(max(0.0, begun - later)):
                        shares[age] = shares.get(age, 0.0) + num_tokens * chance * weight
        total = sum(shares.values()) or 1.0
        return {age: shares[age] / total for age in sorted(shares)}


_PLACES = 8  # in a rollout, at which its tokens are dated


def _split(steps: float) -> list[tuple[int, float]]:
    """Return the two whole numbers around `steps`, weighted so that their mean is it."""
    low = int(steps)
    high = steps - low
    return [(low, 1.0 - high), (low + 1, high)] if high > 0.0 else [(low, 1.0)]
