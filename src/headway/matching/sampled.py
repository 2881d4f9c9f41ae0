"""A sample of what rollouts do at one moment of a run: what the fluid model takes its means and tails from.

The rollouts are drawn by the workload that the simulator draws from, in whole groups, with a fixed seed: two
plans that differ in hardware alone see the same rollouts, so that their difference is not noise.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.matching.contracts import RolloutPlan

if TYPE_CHECKING:
    from headway.matching.contracts import EngineModel, TurnPlan, Workload

_SEED = 20_260_616
_MOST_TURNS = 30_000  # drawn for one sample
_MOST_ROLLOUTS = 2_400
_TIMED_TURNS = 1_500  # whose prefills are timed one by one


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one rollout does, summed over its turns."""

    prompt_tokens: int
    answer_tokens: int
    num_tokens: int  # in the end
    num_turns: int
    num_calls: int
    token_contexts: float  # sum over sampled tokens of the context that each was sampled at
    idle_token_s: float  # sum over tool calls of the context that is held meanwhile, times seconds
    first_answer: int  # sampled before the first tool call
    tool_s: float
    score_s: float
    solved: bool
    truncated: bool
    fails: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """Groups of rollouts drawn for one step of the run."""

    step: int
    groups: list[list[Drawn]]
    plans: list[RolloutPlan]  # some of them whole, to time prefills with
    group_size: int  # rollouts that are started for each task

    def mean(self, name: str) -> float:
        """Return the mean of a field over all rollouts."""
        values = [float(getattr(drawn, name)) for group in self.groups for drawn in group]
        return sum(values) / len(values)

    @property
    def rollouts(self) -> list[Drawn]:
        """All of them."""
        return [drawn for group in self.groups for drawn in group]

    @property
    def resident_tokens(self) -> float:
        """Tokens that a busy slot holds, mean over time: prompt + E[L^2] / (2 E[L]) for one turn."""
        return self.mean("token_contexts") / max(1.0, self.mean("answer_tokens"))

    def share_of_context(self, tokens: int) -> float:
        """Return the share of rollouts that end beyond so many tokens."""
        return sum(drawn.num_tokens > tokens for drawn in self.rollouts) / len(self.rollouts)


def draw(
    workload: Workload, *, step: int, group_size: int, most_turns: int = _MOST_TURNS, fewest: int = 8
) -> Sample:
    """Draw groups at a step, as many as the budget of turns allows.

    Args:
        workload: what rollouts do.
        step: optimizer steps taken so far, for drift.
        group_size: rollouts of a task, oversampled ones included.
        most_turns: budget.
        fewest: groups that are drawn in any case.
    """
    groups: list[list[Drawn]] = []
    plans: list[RolloutPlan] = []
    turns = 0
    while len(groups) < fewest or (turns < most_turns and len(groups) * group_size < _MOST_ROLLOUTS):
        task = f"train/{len(groups)}"
        group: list[Drawn] = []
        for member in range(group_size):
            rng = random.Random(_SEED + 1009 * len(groups) + member)
            plan = workload.plan(rng, task, f"{task}.{member}", 0, step, "train")
            turns += len(plan.turns)
            group.append(_sum_up(plan))
            if turns <= _TIMED_TURNS or not plans:
                plans.append(plan)
        groups.append(group)
    return Sample(step, groups, plans, group_size)


def _sum_up(plan: RolloutPlan) -> Drawn:
    turns: tuple[TurnPlan, ...] = plan.turns
    fails = plan.fails_after is not None
    if plan.fails_after is not None:
        turns = turns[: plan.fails_after]
    context, answered, contexts, idle, tool_s = plan.prompt_tokens, 0, 0.0, 0.0, 0.0
    for turn in turns:
        contexts += turn.answer_tokens * (context + turn.answer_tokens / 2)
        answered += turn.answer_tokens
        context += turn.answer_tokens
        if turn.tool_s is not None:
            tool_s += turn.tool_s
            idle += turn.tool_s * context
        context += turn.observation_tokens
    return Drawn(
        prompt_tokens=plan.prompt_tokens,
        answer_tokens=answered,
        num_tokens=context,
        num_turns=len(turns),
        num_calls=sum(turn.tool_s is not None for turn in turns),
        token_contexts=contexts,
        idle_token_s=idle,
        first_answer=turns[0].answer_tokens,
        tool_s=tool_s,
        score_s=0.0 if fails else plan.score_s,
        solved=plan.solved,
        truncated=plan.truncated,
        fails=fails,
    )


@dataclass(frozen=True, slots=True)
class PrefillTimes:
    """Mean seconds of engine time that a rollout's prefills take, and the tokens that are computed."""

    first_s: float  # of the prompt, once a group
    hit_s: float  # of the later turns, where the prefix cache holds the conversation
    miss_s: float  # of the later turns, where it does not
    hit_tokens: float
    miss_tokens: float
    prompt_tokens: float

    def seconds(self, hit: float) -> float:
        """Return the mean of a rollout at this hit rate."""
        return self.first_s + hit * self.hit_s + (1.0 - hit) * self.miss_s

    def tokens(self, hit: float) -> float:
        """Return the tokens computed for a rollout at this hit rate."""
        return self.prompt_tokens + hit * self.hit_tokens + (1.0 - hit) * self.miss_tokens


def time_prefills(sample: Sample, engine: EngineModel) -> PrefillTimes:
    """Time the prefills of the sample's whole plans."""
    first = hit = miss = hit_tokens = miss_tokens = prompts = 0.0
    share = 1.0 / sample.group_size  # the others of a group find its prompt in the prefix cache
    for plan in sample.plans:
        first += share * engine.prefill_s(plan.prompt_tokens, 0)
        first += (1.0 - share) * engine.prefill_s(1, plan.prompt_tokens - 1)
        prompts += share * plan.prompt_tokens
        context = plan.prompt_tokens
        for turn in plan.turns[:-1]:
            # of the answer all but the newest token is in the cache: it was computed as it was sampled
            new = turn.observation_tokens + 1 + turn.recomputed_tokens
            context += turn.answer_tokens + turn.observation_tokens
            hit += engine.prefill_s(new, context - new)
            miss += engine.prefill_s(context, 0)
            hit_tokens += new
            miss_tokens += context
    sums = (first, hit, miss, hit_tokens, miss_tokens, prompts)
    return PrefillTimes(*(total / len(sample.plans) for total in sums))
