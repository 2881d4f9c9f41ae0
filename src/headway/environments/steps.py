"""What a finished rollout and a score become: the payload on disk, and the event that tells of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headway.core.codec import finite_only
from headway.core.errors import EnvironmentFault, RewardFault, SandboxError
from headway.core.events import RolloutEnded, Scored, ScoreFailed
from headway.core.payload import Payload, PayloadWriter
from headway.core.protocols import Outcome
from headway.environments.faults import PayloadError, describe_exception
from headway.environments.supervised import OverdueError
from headway.rewards.check import MalformedRewardFault
from headway.rewards.faults import JudgeAwayError, JudgeError, RewardRaisedFault, RewardTimeoutFault

if TYPE_CHECKING:
    from headway.core.commands import Score, StartRollout
    from headway.core.records import Reward, Task
    from headway.environments.conversation import Conversation
    from headway.environments.lease import SandboxLease


def finish_rollout(
    command: StartRollout,
    task: Task,
    chat: Conversation,
    outcome: object,
    lease: SandboxLease,
    payloads: PayloadWriter,
) -> RolloutEnded:
    """Write the payload, then return the event; `outcome` is whatever the environment returned.

    Raises EnvironmentFault when the environment broke its contract, PayloadError when writing failed,
    DiskFullError when there was no room.
    """
    if not isinstance(outcome, Outcome):
        raise EnvironmentFault("a rollout must return an Outcome", value=type(outcome).__name__)
    try:
        json.dumps(outcome.data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(f"an Outcome must hold JSON values only: {error}") from error
    recorder = chat.recorder
    if recorder.num_sampled_tokens == 0:
        raise EnvironmentFault("a rollout must let the policy say something")
    payload = Payload(command.rollout, task.id, recorder.samples(), outcome.data, recorder.transcript)
    try:
        reference = payloads.append(payload)
    except OSError as error:
        raise PayloadError(f"a finished rollout could not be written: {error}") from error
    return RolloutEnded(
        rollout=command.rollout,
        attempt=command.attempt,
        payload=reference,
        spans=recorder.spans(),
        num_turns=chat.num_turns,
        num_tool_calls=lease.num_tool_calls,
        num_prompt_tokens=recorder.num_prompt_tokens,
        num_tokens=recorder.num_sampled_tokens,
        truncated=chat.turns.truncated,
    )


def scored(
    command: Score, reward: Reward, duration_s: float, sandbox_start_s: float, *, judged: bool = False
) -> Scored:
    """Return the event of a score; metrics that are not finite are left out."""
    return Scored(
        rollout=command.rollout,
        attempt=command.attempt,
        tries=command.tries,
        reward=float(reward.score),
        reasons=reward.reasons,
        duration_s=duration_s,
        sandbox_start_s=sandbox_start_s,
        metrics=finite_only(reward.metrics),
        turn_rewards=tuple(map(float, reward.turns)),
        judged=judged,
    )


def score_failed(command: Score, error: Exception) -> ScoreFailed:
    """Return the event of a failed score.

    Its cause is timeout, sandbox, judge, judge_away, not_finite, malformed or exception.
    """
    cause = "exception"
    if isinstance(error, (OverdueError, RewardTimeoutFault)):
        cause = "timeout"
    elif isinstance(error, SandboxError):
        cause = "sandbox"
    elif isinstance(error, JudgeError):
        cause = "judge_away" if isinstance(error, JudgeAwayError) else "judge"
    elif isinstance(error, RewardFault) and not isinstance(error, RewardRaisedFault):
        cause = "malformed" if isinstance(error, MalformedRewardFault) else "not_finite"
    return ScoreFailed(command.rollout, command.attempt, command.tries, cause, describe_exception(error))
