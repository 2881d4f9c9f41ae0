"""Drifting simulated workloads for benchmarks/control.py: rollouts, engines, trainers.

Engine and trainer are affine: a decode iteration takes 15 ms, 20 us more for each request and 20 ns for each
resident token, as of a model of some 30 billion weights on four accelerators, with few heads of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.matching.engine import MeasuredEngine
from headway.matching.spec import TimingSettings, WorkloadSettings
from headway.queue.settings import QueueSettings

STEPS = 100


def engine(kv_tokens: int = 600_000, prefill_token_s: float = 4e-5) -> MeasuredEngine:
    """Return a replica whose iteration grows with requests and with what they hold."""
    timings = TimingSettings(
        decode_base_s=0.015, decode_row_s=2e-5, decode_token_s=2e-8, prefill_base_s=0.004,
        prefill_token_s=prefill_token_s,
    )  # fmt: skip
    return MeasuredEngine(None, timings, max_running=256, kv_tokens=kv_tokens)


@dataclass(frozen=True)
class AffineTrainer:
    """A step that has a fixed part and one that grows with its tokens."""

    base_s: float = 4.0
    token_s: float = 5e-5
    load_s: float = 0.0
    publish_s: float = 1.0
    apply_s: float = 0.5
    save_s: float = 5.0

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        """Return the seconds of a step."""
        return self.base_s + self.token_s * num_tokens


@dataclass(frozen=True)
class Scene:
    """One workload with its machines."""

    name: str
    words: str
    workload: WorkloadSettings
    engine: MeasuredEngine = field(default_factory=engine)
    trainer: AffineTrainer = field(default_factory=AffineTrainer)
    replicas: int = 1
    queue: QueueSettings = field(default_factory=lambda: QueueSettings(group_size=8, batch_size=64, bound=2))


SCENES = (
    Scene(
        "lengths",
        "answers grow to three times their length",
        WorkloadSettings(
            turns=3.0, answer_tokens=150.0, tool_s=6.0, tool_sigma=1.0, rollout_sigma=0.5,
            observation_tokens=100.0,
            drift={"answer_tokens": 3.0}, drift_steps=80, solve_alpha=2.0, solve_beta=2.0,
        ),
    ),
    Scene(
        "tools",
        "tool calls grow to two and a half times their number",
        WorkloadSettings(
            turns=3.0, turns_sigma=0.4, answer_tokens=120.0, tool_s=8.0, tool_sigma=1.0,
            observation_tokens=100.0,
            drift={"turns": 2.5}, drift_steps=80, solve_alpha=2.0, solve_beta=2.0,
        ),
        trainer=AffineTrainer(base_s=18.0),
    ),
    Scene(
        "solving",
        "solve rates rise, until three groups of four carry no signal",
        WorkloadSettings(
            turns=3.0, answer_tokens=200.0, tool_s=6.0, tool_sigma=1.0, observation_tokens=100.0,
            learning=0.03, solve_alpha=1.0, solve_beta=2.0,
        ),
        trainer=AffineTrainer(base_s=10.0),
    ),
    Scene(
        "tails",
        "tools with long tails, which grow to three times as slow",
        WorkloadSettings(
            turns=4.0, answer_tokens=120.0, tool_s=5.0, tool_sigma=1.5, observation_tokens=100.0,
            drift={"tool_s": 3.0}, drift_steps=80, solve_alpha=2.0, solve_beta=2.0,
        ),
        trainer=AffineTrainer(base_s=14.0),
    ),
    Scene(
        "kv",
        "contexts outgrow the engine's memory, and preemption is dear",
        WorkloadSettings(
            prompt_tokens=3000, turns=3.0, answer_tokens=250.0, tool_s=3.0, tool_sigma=0.8,
            rollout_sigma=0.5, observation_tokens=300.0, drift_steps=80,
            drift={"answer_tokens": 4.0, "observation_tokens": 4.0},
            solve_alpha=2.0, solve_beta=2.0,
        ),
        engine=engine(kv_tokens=200_000, prefill_token_s=2e-4),
        trainer=AffineTrainer(base_s=10.0),
    ),
)  # fmt: skip

HELD_OUT = (
    Scene(
        "quicker",
        "tools get four times as quick, so that the trainer comes to be the slower half",
        WorkloadSettings(
            turns=4.0, turns_sigma=0.3, answer_tokens=150.0, tool_s=10.0, tool_sigma=0.8,
            rollout_sigma=0.4, observation_tokens=150.0, drift={"tool_s": 0.25}, drift_steps=60,
            solve_alpha=2.0, solve_beta=2.0,
        ),
        trainer=AffineTrainer(base_s=12.0),
    ),
    Scene(
        "thinking",
        "no tools, long answers of unlike length which double, larger groups, three replicas, bound 4",
        WorkloadSettings(
            turns=1.0, answer_tokens=800.0, rollout_sigma=0.7, task_sigma=0.4, drift={"answer_tokens": 2.0},
            drift_steps=80, solve_alpha=1.0, solve_beta=1.5,
        ),
        replicas=3,
        trainer=AffineTrainer(base_s=6.0, token_s=2e-5),
        queue=QueueSettings(group_size=16, batch_size=128, bound=4),
    ),
    Scene(
        "shorter",
        "conversations shrink to two fifths of their turns, small groups, bound 3",
        WorkloadSettings(
            turns=6.0, turns_sigma=0.4, answer_tokens=100.0, tool_s=4.0, tool_sigma=1.2, rollout_sigma=0.3,
            observation_tokens=120.0, drift={"turns": 0.4}, drift_steps=70, solve_alpha=1.5, solve_beta=1.5,
        ),
        replicas=2,
        trainer=AffineTrainer(base_s=8.0),
        queue=QueueSettings(group_size=4, batch_size=64, bound=3),
    ),
)  # fmt: skip
"""Workloads that no rule was tuned on.

Of the first two, decisions of earlier rules were looked at, and one rule came of the second. The last one was
written when all rules but that one were done.
"""
