"""What the simulated driver asks of its models: one protocol a role, and what a rollout is going to do.

A model of an engine or a trainer is a pure function of the load; all chance is in the workload, which draws
from the generator that it is given. `headway.matching.spec` says which settings build them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import random


class EngineModel(Protocol):
    """How one replica of the generator spends its time.

    A replica decodes in iterations: each gives every running request one token (`tokens_per_iteration` with
    speculative decoding). Prefill takes the whole replica, first come first served, and decoding stands still
    meanwhile, unless `separate_prefill`: then `prefill_lines` parts of the machine do nothing else.
    """

    @property
    def max_running(self) -> int:
        """Requests that decode at once, at most."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit into the replica's memory; 0 for no end."""
        ...

    @property
    def offload_tokens(self) -> int:
        """Tokens whose keys and values fit into host memory, for conversations that wait elsewhere."""
        ...

    @property
    def separate_prefill(self) -> bool:
        """Whether prefill runs on machines of its own."""
        ...

    @property
    def prefill_lines(self) -> int:
        """Prefills at once with `separate_prefill`, each at the speed of `prefill_s`; 0 for any number."""
        ...

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens that a request gets of one iteration, at least 1."""
        ...

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        """Return the seconds of one iteration over so many requests that hold so many tokens together.

        Affine in `resident_tokens` for a given `num_running`, or close to it.
        """
        ...

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        """Return the seconds to compute `num_tokens` new tokens behind `context_tokens` cached ones."""
        ...


class TrainerModel(Protocol):
    """How long the trainer takes; rows are the rollouts of a step, tokens all that they hold."""

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        """Return the seconds of a step: forward, backward, optimizer.

        Args:
            num_rows: rollouts.
            num_tokens: tokens of all of them.
            sum_squares: sum over rows of their tokens squared, which attention's work grows with.
        """
        ...

    @property
    def load_s(self) -> float:
        """Seconds between a batch's release and the start of computing: data loading."""
        ...

    @property
    def publish_s(self) -> float:
        """Seconds to write a version, while which the trainer does nothing else."""
        ...

    @property
    def apply_s(self) -> float:
        """Seconds that a replica stands still to take up a version."""
        ...

    @property
    def save_s(self) -> float:
        """Seconds until a checkpoint is written, beside training."""
        ...


class TurnPlan(NamedTuple):
    """One turn that a rollout is going to take."""

    answer_tokens: int  # sampled
    tool_s: float | None  # of the tool call behind it, None for no call
    observation_tokens: int  # that the environment adds behind the answer, before the next turn
    recomputed_tokens: int = 0  # of the context, that the prefix cache does not hold: prefilled again


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What one attempt is going to do if it is let: drawn when it starts."""

    prompt_tokens: int
    turns: tuple[TurnPlan, ...]
    truncated: bool  # the last answer is cut by the limit on tokens or on turns
    solved: bool
    score_s: float  # of its reward
    uses_sandbox: bool = False  # asked for at the first tool call
    sandbox_start_s: float | None = None  # of its start as it was recorded, in place of the fleet's
    fails_after: int | None = None  # turns after which the attempt ends as a failure
    failure: Literal["infrastructure", "environment"] = "infrastructure"  # whose

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the policy samples."""
        return sum(turn.answer_tokens for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Tokens in the end: prompt, answers and observations."""
        return self.prompt_tokens + sum(turn.answer_tokens + turn.observation_tokens for turn in self.turns)


class Workload(Protocol):
    """What rollouts do: drawn, or replayed from a recorded run."""

    def plan(
        self, rng: random.Random, task_id: str, rollout: str, attempt: int, step: int, purpose: str
    ) -> RolloutPlan:
        """Draw what an attempt at a task does that starts after `step` optimizer steps.

        Args:
            rng: a stream of this attempt's own, seeded by it: it does the same whatever else is simulated.
            task_id: as `roles.offer` names tasks; the same task has the same solve rate each time.
            rollout: its id, by which a recorded workload finds what really happened.
            attempt: its number.
            step: optimizer steps applied so far, for drift.
            purpose: `train` or `eval`.
        """
        ...

    def reward(self, rng: random.Random, plan: RolloutPlan) -> float:
        """Return what the verifier says."""
        ...


class FleetModel(Protocol):
    """How sandboxes start: what a provider's limits do to a burst."""

    def begin(self) -> Fleet:
        """Return a provider that has started nothing yet: one for each simulation."""
        ...


@dataclass(frozen=True, slots=True)
class SandboxStart:
    """How the start of one sandbox ends."""

    at_s: float  # when it is ready, or given up
    fails: bool = False  # as an infrastructure failure, its retries included


class Fleet(Protocol):
    """A provider in use."""

    def start(self, rng: random.Random, now_s: float) -> SandboxStart:
        """Create a sandbox now; calls come in the order of time, and each stands in line behind those before.

        Args:
            rng: where chance comes from.
            now_s: of the creation, seconds.
        """
        ...
