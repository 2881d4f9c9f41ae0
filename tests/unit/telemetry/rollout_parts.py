"""A payload with two branches and several versions, and the record that goes with it."""

from array import array

from headway.core.payload import Payload
from headway.core.records import FLAGS, FLOATS, TOKENS, Latency, Stream, TrainingSample, TurnSpan, VersionSpan
from headway.telemetry.rollout_record import Failure, RolloutRecord


def sample(ids, trainable, logprobs, spans, turns, **more):
    return TrainingSample(
        array(TOKENS, ids),
        array(FLAGS, trainable),
        array(FLOATS, logprobs),
        [VersionSpan(*span) for span in spans],
        0.7,
        turns=[TurnSpan(*turn) for turn in turns],
        **more,
    )


def payload(rollout="t0.0", text="5+3="):
    """Two branches share turn 0: prompt 10 11, answer 20 21 (versions 3 and 4), then turn 1 or 2."""
    first = sample(
        [10, 11, 20, 21, 12, 22, 23],
        [0, 0, 1, 1, 0, 1, 1],
        [0, 0, -0.1, -4.25, 0, -1 / 3, -1e-7],
        [(0, 3, 1), (1, 4, 3)],
        [(0, 2), (1, 2)],
        streams={"kept": Stream("token", "int8", (7,), bytes(7))},
    )
    second = sample(
        [10, 11, 20, 21, 13, 24], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, -2.0], [(1, 4, 1)], [(2, 1)]
    )
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "8", "finish": "stop"}]
    return Payload(rollout, "train/7", [first, second], {"answer": "8"}, messages)


def record(**changes):
    values = {
        "rollout": "t0.0",
        "group": "t0",
        "task_id": "train/7",
        "level": 3,
        "source": "",
        "purpose": "train",
        "fate": "trained",
        "reason": "",
        "attempt": 1,
        "started_s": 3.0,
        "ended_s": 7.0,
        "payload": "f.bin:0:9",
        "reward": 0.5,
        "reasons": ("close",),
        "reward_metrics": {"near": 0.25},
        "turn_rewards": (0.1, 0.2, 0.3),
        "advantage": 1.5,
        "turn_advantages": (1.0, 2.0, -3.0),
        "num_prompt_tokens": 4,
        "num_tokens": 5,
        "num_turns": 3,
        "num_tool_calls": 1,
        "truncated": True,
        "spans": (VersionSpan(0, 3, 1), VersionSpan(1, 4, 4)),
        "latency": Latency(queue_s=1.0, decode_s=2.5, tool_s=0.5),
        "end_to_end_s": 4.0,
        "step": 6,
        "trajectory_staleness": 3,
        "token_staleness": 1,
        "environment_staleness": None,
        "weight": 0.8,
        "masked": ((0, 3),),
        "num_masked_tokens": 1,
        "num_revived": 0,
        "failures": (Failure(0, "environment", "exception", "it broke", True),),
        "audit": "",
        "audit_wrong": False,
    }
    return RolloutRecord(**{**values, **changes})
