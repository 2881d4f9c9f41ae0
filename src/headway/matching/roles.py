"""Modelled generators, trainer, sandboxes and verifiers for the simulated driver.

Each role turns a command into events some virtual seconds later. All randomness comes from the one
`random.Random` that the simulation was seeded with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.events import TaskOffered
from headway.core.records import VersionSpan

if TYPE_CHECKING:
    import random

    from headway.core.commands import RequestTask


@dataclass(frozen=True, slots=True)
class SimSettings:
    """How long things take (means, seconds) and how often they go wrong (probabilities)."""

    max_running: int = 32  # slots of a replica
    tokens_mean: float = 40.0  # sampled tokens of a turn, lognormal
    tokens_sigma: float = 0.6  # of the logarithm
    max_answer_tokens: int = 256
    token_s: float = 0.02
    prefill_s: float = 0.05
    prefill_token_s: float = 0.0  # more for each token of the context
    kv_tokens: int = 0  # that fit into a replica's memory, 0 for no end; above it requests are preempted
    sample_s: float = 1.0  # between two measurements of the memory
    num_turns: int = 2
    uses_sandbox: bool = True
    sandbox_start_s: float = 0.02
    tool_s: float = 0.1  # mean
    tool_sigma: float = 0.0  # of the logarithm: above 1, a few calls take many times the mean
    score_s: float = 0.05
    train_s: float = 4.0
    publish_s: float = 0.2
    apply_s: float = 0.1
    save_s: float = 0.3
    start_s: float = 5.0
    solve_rate: float = 0.4  # of a rollout; each task's own rate is drawn around it
    num_tasks: int = 0  # of the train split, 0 for no end
    solve_rates: dict[str, float] = field(default_factory=dict[str, float])  # by level or source, if known
    learning: float = 0.0  # that each step adds to these solve rates
    tokens_means: dict[str, float] = field(default_factory=dict[str, float])  # by source, if known
    p_environment_fails: float = 0.0
    p_infrastructure_fails: float = 0.0
    p_hangs: float = 0.0  # never returns until cancelled
    p_ignores_cancel: float = 0.0  # of those that hang
    p_score_fails: float = 0.0
    p_sandbox_lost: float = 0.0
    p_verdict_drops: float = 0.0  # of groups
    p_repeated: float = 0.0  # an event arrives a second time, later
    p_message_lost: float = (
        0.0  # an event about a rollout or a sandbox never arrives (`simulate.MAY_BE_LOST`)
    )
    p_message_late: float = 0.0  # an event arrives up to `late_s` seconds later
    late_s: float = 20.0
    p_score_hangs: float = 0.0  # a try at a score is never answered
    p_trainer_stalls: float = 0.0  # a step takes `stall_factor` times as long
    p_weights_late: float = 0.0  # a replica takes `stall_factor` times as long to take up a version
    stall_factor: float = 25.0
    p_sandbox_lies: float = 0.0  # one says that it is ready again, after it was ready or lost
    generator_dies_every_s: float = 0.0  # mean time to the death of a generator, 0 for never
    environment_dies_every_s: float = 0.0  # mean time to the death of an environment worker, 0 for never
    p_trainer_dies: float = 0.0  # in a step
    keeps_partials: bool = True  # parked rollouts leave something that a later life can go on from


@dataclass(slots=True)
class SimReplica:
    """Slots, a waiting line, and the history of versions, from which token spans are cut."""

    name: str
    slots: int
    versions: list[tuple[float, int, int]]  # (since, lineage, number)
    epoch: int = 0
    dead: bool = False
    running: int = 0
    line: list[str] = field(default_factory=list[str])  # keys of waiting turns
    decoding: dict[str, None] = field(default_factory=dict[str, None])  # rollouts that hold a slot

    def spans(self, begin_s: float, token_s: float, num_tokens: int) -> list[VersionSpan]:
        """Cut `num_tokens` tokens, one each `token_s` from `begin_s` on, by the version of their moment."""
        spans: list[VersionSpan] = []
        for index in range(num_tokens):
            at = begin_s + (index + 1) * token_s
            _, lineage, number = next(v for v in reversed(self.versions) if v[0] <= at)
            if spans and spans[-1][:2] == (lineage, number):
                spans[-1] = VersionSpan(lineage, number, spans[-1].num_tokens + 1)
            else:
                spans.append(VersionSpan(lineage, number, 1))
        return spans


@dataclass(slots=True)
class SimRollout:
    """One attempt on its way."""

    rollout: str
    attempt: int
    replica: str
    task_id: str
    priority: int = 0  # lower ones leave the line first
    turn: int = 0
    spans: list[VersionSpan] = field(default_factory=list[VersionSpan])  # of the answers that ended
    sandbox: str = ""
    hangs: bool = False
    ignores_cancel: bool = False
    waiting_since_s: float = 0.0
    over: bool = False
    parked: bool = False
    asks: bool = False  # it wants an answer: in line, decoding, or parked in the midst of one
    decoding: bool = False  # it holds a slot
    prefill_s: float = 0.0  # of the unfinished answer
    begin_s: float = 0.0  # of decoding the answer's current part
    num_left: int = 0  # tokens that the answer still lacks
    answer: list[VersionSpan] = field(default_factory=list[VersionSpan])  # of the unfinished answer
    waited_s: float = 0.0  # of the unfinished answer
    part: int = 0  # one more each time that decoding begins or ends


def offer(command: RequestTask, settings: SimSettings) -> TaskOffered:
    """Return the task that a request gets; ids are as the live driver makes them."""
    train = command.split == "train"
    size = settings.num_tasks if train else 0
    index = command.index % size if size else command.index
    source = f"{command.source}:" if command.source else ""
    level = "" if command.level is None else f"/{command.level}"
    return TaskOffered(command.request, f"{source}{command.split}/{index}{level}", command.level or 0, size)


def draw_tokens(rng: random.Random, settings: SimSettings, task_id: str = "") -> int:
    """Draw the length of one answer: lognormal with the given mean, at least 1, cut at the limit."""
    sigma = settings.tokens_sigma
    mu = -0.5 * sigma * sigma
    mean = settings.tokens_means.get(task_id.partition(":")[0], settings.tokens_mean)
    drawn = mean * rng.lognormvariate(mu, sigma)
    return max(1, min(settings.max_answer_tokens, round(drawn)))


def draw_tool_s(rng: random.Random, settings: SimSettings) -> float:
    """Draw the duration of one tool call, seconds: lognormal with the given mean."""
    if not settings.tool_sigma:
        return settings.tool_s
    sigma = settings.tool_sigma
    return settings.tool_s * rng.lognormvariate(-0.5 * sigma * sigma, sigma)


def task_solve_rate(task_id: str, settings: SimSettings, step: int = 0) -> float:
    """Return a task's own solve rate after so many steps.

    By its level or source where those are known; else 0, 1 or the mean, so that some groups have no signal.
    """
    source, _, place = task_id.rpartition(":")
    _, index, *level = place.split("/")
    known = settings.solve_rates.get(level[0] if level else source)
    if known is not None:
        return min(1.0, max(0.0, known + settings.learning * step))
    return (
        (settings.solve_rate, settings.solve_rate, 0.0, 1.0)[int(index) % 4]
        if int(index) % 8 > 3
        else settings.solve_rate
    )
