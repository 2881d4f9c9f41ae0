"""What goes wrong in a simulated run, and plain models of its parts: settings that tests write in a line.

`SimSettings` describes an engine whose requests do not slow one another down, a trainer whose step takes as
long whatever is in it, and rollouts of a fixed number of turns. `plain_models` makes models of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.events import TaskOffered
from headway.matching.contracts import EngineModel, FleetModel, TrainerModel, Workload

if TYPE_CHECKING:
    from headway.core.commands import RequestTask


@dataclass(frozen=True, slots=True)
class Faults:
    """How often things go wrong (probabilities), and how long starts take (means, seconds)."""

    start_s: float = 5.0  # of a worker
    sample_s: float = 1.0  # between two measurements of the engines' memory, which have an end
    keeps_partials: bool = True  # parked rollouts leave something that a later life can go on from
    p_environment_fails: float = 0.0  # after an answer
    p_infrastructure_fails: float = 0.0  # likewise
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

    @property
    def messages_fail(self) -> bool:
        """Whether an event may arrive late, twice or never."""
        return bool(self.p_repeated or self.p_message_lost or self.p_message_late)


@dataclass(frozen=True, slots=True)
class SimSettings(Faults):
    """How long things take (means, seconds), beside what goes wrong."""

    max_running: int = 32  # slots of a replica
    tokens_mean: float = 40.0  # sampled tokens of a turn, lognormal
    tokens_sigma: float = 0.6  # of the logarithm
    max_answer_tokens: int = 256
    token_s: float = 0.02
    prefill_s: float = 0.05
    prefill_token_s: float = 0.0  # more for each token that no prefix cache holds
    kv_tokens: int = 0  # that fit into a replica's memory, 0 for no end; above it requests are preempted
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
    solve_rate: float = 0.4  # of a rollout; each task's own rate is drawn around it
    num_tasks: int = 0  # of the train split, 0 for no end
    solve_rates: dict[str, float] = field(default_factory=dict[str, float])  # by level or source, if known
    learning: float = 0.0  # that each step adds to these solve rates
    tokens_means: dict[str, float] = field(default_factory=dict[str, float])  # by source, if known


@dataclass(frozen=True, slots=True)
class SimModels:
    """Everything that a simulated run is made of, beside the scheduler's settings."""

    engine: EngineModel
    trainer: TrainerModel
    workload: Workload
    fleet: FleetModel
    faults: Faults = field(default_factory=Faults)
    num_tasks: int = 0  # of the train split, 0 for no end


def offer(command: RequestTask, num_tasks: int) -> TaskOffered:
    """Return the task that a request gets; ids are as the live driver makes them.

    Args:
        command: the request.
        num_tasks: of the train split, 0 for no end.
    """
    size = num_tasks if command.split == "train" else 0
    index = command.index % size if size else command.index
    source = f"{command.source}:" if command.source else ""
    level = "" if command.level is None else f"/{command.level}"
    return TaskOffered(command.request, f"{source}{command.split}/{index}{level}", command.level or 0, size)
