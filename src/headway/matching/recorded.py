"""A workload that replays what a run's rollouts did, and draws what never ran.

A rollout is found by its task, by how often that task was taken before, and by its place in its group. It
does what the recorded one did: the same answers, times between them, score and reward. Where the recorded one
was cut off, it does as much, and what follows is drawn from the fitted models given that it is longer; where
there is none, all is drawn. Both are counted.

With a seed above 0 each recorded group stands in for a neighbour: one drawn from the tenth of the run around
it. Simulations with several seeds then differ as runs do (a bootstrap over groups that keeps drift), and two
settings with the same seed see the same groups.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import TYPE_CHECKING

from headway.matching.contracts import RolloutPlan, TurnPlan
from headway.matching.recorded_run import place_of
from headway.matching.workload import DrawnWorkload

if TYPE_CHECKING:
    from headway.matching.recorded_run import RecordedAttempt, RecordedTurn, Recording
    from headway.matching.spec import WorkloadSettings

LEAST_CALL_S = 0.001  # behind the last answer; less is the way of the message
_NEIGHBOURS = 10  # a group stands in for those of so many a part of the run around it

Place = tuple[bool, int]  # whether it is an evaluation's group, and its number


@dataclass(frozen=True, slots=True)
class RecordedPlan(RolloutPlan):
    """A plan that knows its reward."""

    reward: float = 0.0


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors on what was recorded, and limits to cut it at; 0 for no limit."""

    tool_s: float = 1.0
    answer_tokens: float = 1.0
    score_s: float = 1.0
    max_answer_tokens: int = 0
    max_context_tokens: int = 0


class RecordedWorkload:
    """One simulation's workload; make another for each.

    Attributes:
        num_recorded: rollouts that did what was recorded.
        num_extended: rollouts that did so and went on, drawn.
        num_drawn: rollouts that were drawn as a whole.
    """

    def __init__(
        self,
        recording: Recording,
        settings: WorkloadSettings,
        *,
        max_context_tokens: int = 0,
        seed: int = 0,
        scales: Scales | None = None,
    ) -> None:
        """Take a recording, and what draws the rest.

        Args:
            recording: of the run.
            settings: the calibrated workload.
            max_context_tokens: that cuts what is drawn.
            seed: 0 for the groups as they were.
            scales: what is changed.
        """
        self._settings = settings
        self._fitted = DrawnWorkload(settings, max_context_tokens=max_context_tokens)
        self._scales = scales or Scales()
        self._seed = seed
        self.num_recorded = self.num_extended = self.num_drawn = 0
        self._members: dict[Place, dict[int, dict[int, RecordedAttempt]]] = {}
        self._visits: dict[tuple[bool, str], list[Place]] = {}
        for attempt in recording.attempts:
            found = place_of(attempt.rollout)
            if found is None:
                continue
            group = found[:2]
            if group not in self._members:
                task = recording.tasks.get(attempt.task_id, attempt.task_id)
                self._visits.setdefault((found[0], task), []).append(group)
            members = self._members.setdefault(group, {})
            members.setdefault(found[2], {})[attempt.attempt] = attempt
        self._order = [group for group in self._members if not group[0]]
        self._position = {group: place for place, group in enumerate(self._order)}
        self._taken: Counter[tuple[bool, str]] = Counter()
        self._group_of: dict[Place, Place | None] = {}  # simulated group -> recorded one

    def plan(
        self, rng: random.Random, task_id: str, rollout: str, attempt: int, step: int, purpose: str
    ) -> RolloutPlan:
        """Return what the recorded rollout did; see `contracts.Workload`."""
        drawn = self._fitted.plan(rng, task_id, rollout, attempt, step, purpose)
        recorded = self._find(task_id, rollout, attempt)
        if recorded is None or not (recorded.turns or recorded.num_tokens):
            self.num_drawn += 1
            return self._scaled(drawn)
        plan, whole = self._replay(rng, recorded, drawn)
        self.num_recorded += whole
        self.num_extended += not whole
        return self._scaled(plan)

    def reward(self, rng: random.Random, plan: RolloutPlan) -> float:
        """Return the recorded reward, or 1 for a drawn rollout that solves its task."""
        return plan.reward if isinstance(plan, RecordedPlan) else self._fitted.reward(rng, plan)

    def _find(self, task_id: str, rollout: str, attempt: int) -> RecordedAttempt | None:
        found = place_of(rollout)
        if found is None:
            return None
        group = found[:2]
        if group not in self._group_of:
            key = (found[0], task_id)
            visits, taken = self._visits.get(key, []), self._taken[key]
            self._taken[key] += 1
            self._group_of[group] = self._stand_in(visits[taken]) if taken < len(visits) else None
        recorded = self._group_of[group]
        if recorded is None:
            return None
        attempts = self._members[recorded].get(found[2], {})
        return attempts.get(attempt, attempts.get(max(attempts)) if attempts else None)

    def _stand_in(self, group: Place) -> Place:
        """Return the recorded group that stands in for one of the run's."""
        position = self._position.get(group)
        if not self._seed or position is None:
            return group
        width = max(4, len(self._order) // (2 * _NEIGHBOURS))
        low, high = max(0, position - width), min(len(self._order) - 1, position + width)
        chosen = random.Random(f"{self._seed}:{position}").randint(low, high)
        return self._order[chosen]

    def _replay(
        self, rng: random.Random, recorded: RecordedAttempt, drawn: RolloutPlan
    ) -> tuple[RolloutPlan, bool]:
        """Return what a recorded attempt did, and whether it came to its end."""
        turns = [_turn(recorded.turns, place) for place in range(len(recorded.turns))]
        whole = recorded.outcome in ("ended", "failed") and bool(turns)
        failed = recorded.outcome == "failed" and whole
        if not whole:
            turns = self._go_on(rng, recorded, turns, drawn)
        prompt = recorded.turns[0].prompt_tokens if recorded.turns else drawn.prompt_tokens
        scored = recorded.reward is not None
        plan = RecordedPlan(
            prompt_tokens=max(1, prompt),
            turns=tuple(turns),
            truncated=recorded.truncated if whole else drawn.truncated,
            solved=recorded.reward > 0.5 if recorded.reward is not None else drawn.solved,
            score_s=recorded.score_s if recorded.score_s is not None else drawn.score_s,
            uses_sandbox=recorded.sandbox_start_s is not None or (not whole and drawn.uses_sandbox),
            sandbox_start_s=recorded.sandbox_start_s,
            fails_after=len(turns) if failed else None,
            failure="environment" if recorded.owner == "environment" else "infrastructure",
            reward=recorded.reward if recorded.reward is not None else float(drawn.solved),
        )
        return plan, whole and (scored or failed)

    def _go_on(
        self, rng: random.Random, recorded: RecordedAttempt, turns: list[TurnPlan], drawn: RolloutPlan
    ) -> list[TurnPlan]:
        """Return the turns of an attempt that was cut off, with what would have followed."""
        settings = self._settings
        begun = recorded.num_tokens - recorded.num_answered
        num_turns = len(turns) + (begun > 0)
        wanted = round(_longer(rng, settings.turns, settings.turns_sigma, max(0.0, num_turns - 0.5)))
        if turns and recorded.turns[-1].cut_short:
            least = recorded.turns[-1].after_s or 0.0
            after_s = _longer(rng, settings.tool_s, settings.tool_sigma, least)
            turns[-1] = turns[-1]._replace(tool_s=after_s if after_s >= LEAST_CALL_S else None)
        missing = max(wanted, num_turns, 1) - len(turns)
        left = [drawn.turns[place % len(drawn.turns)] for place in range(missing)]
        if begun and left:
            sigma = (settings.answer_sigma**2 + settings.rollout_sigma**2 + settings.task_sigma**2) ** 0.5
            whole = round(_longer(rng, settings.answer_tokens, sigma, begun))
            left[0] = left[0]._replace(answer_tokens=max(begun + 1, whole))
        return [*turns, *left]

    def _scaled(self, plan: RolloutPlan) -> RolloutPlan:
        scales = self._scales
        if scales == Scales():
            return plan
        turns: list[TurnPlan] = []
        context, cut = plan.prompt_tokens, False
        for turn in plan.turns:
            answer = max(1, round(turn.answer_tokens * scales.answer_tokens))
            if scales.max_answer_tokens and answer > scales.max_answer_tokens:
                answer, cut = scales.max_answer_tokens, True
            room = scales.max_context_tokens - context if scales.max_context_tokens else answer
            tool_s = None if turn.tool_s is None else turn.tool_s * scales.tool_s
            if room < answer:
                turns.append(TurnPlan(max(1, room), None, 0))
                cut = True
                break
            turns.append(TurnPlan(answer, tool_s, turn.observation_tokens, turn.recomputed_tokens))
            context += answer + turn.observation_tokens
        reward = plan.reward if isinstance(plan, RecordedPlan) else float(plan.solved)
        return RecordedPlan(
            plan.prompt_tokens, tuple(turns), plan.truncated or cut, plan.solved,
            plan.score_s * scales.score_s, plan.uses_sandbox, plan.sandbox_start_s, plan.fails_after,
            plan.failure, reward,
        )  # fmt: skip


def _turn(turns: list[RecordedTurn], place: int) -> TurnPlan:
    turn = turns[place]
    added = 0
    if place + 1 < len(turns):
        added = max(0, turns[place + 1].prompt_tokens - turn.prompt_tokens - turn.num_tokens)
    after_s = turn.after_s if turn.after_s is not None and turn.after_s >= LEAST_CALL_S else None
    if turn.num_calls and after_s is None:
        after_s = turn.calls_s
    return TurnPlan(max(1, turn.num_tokens), after_s, added)


def _longer(rng: random.Random, mean: float, sigma: float, least: float) -> float:
    """Draw from a lognormal what is longer than `least`."""
    if not mean or not sigma:
        return max(mean, least)
    normal = NormalDist(log(mean) - sigma * sigma / 2, sigma)
    below = normal.cdf(log(least)) if least > 0.0 else 0.0
    share = below + (1.0 - below) * rng.random()
    return max(least, exp(normal.inv_cdf(min(share, 1.0 - 1e-9)))) if share > 0.0 else least
