"""What a SPEC says beyond a run's config: hardware, workload, sandbox fleet, and measured times.

A SPEC is a TOML file with the sections of a run's config (each optional here) and these beside them. A run's
config is a SPEC once `[hardware]` or `[timings]` says what its machines do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headway.core.near import did_you_mean, nearest
from headway.core.settings import Problem, setting

Precision = Literal["f32", "bf16", "fp8"]

# Ends of what can be meant. Within them every formula stays finite.
_MOST_S = 1e6  # seconds of anything, twelve days
_MOST_TOKENS = 10_000_000  # of anything that one rollout has
_MOST_PARTS = 100_000  # accelerators of a side
_MOST_SIGMA = 4.0  # of a logarithm
_LEAST_S = 1e-9  # of an iteration or a step
MOST_REPLICAS = 1024
"""Engines at most, as generator.replicas has it."""
DRIFTING = ("prompt_tokens", "turns", "answer_tokens", "observation_tokens", "tool_s", "score_s")
"""Quantities of [workload] that may drift."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Sections [hardware.trainer] and [hardware.generator]: one kind of accelerators and how they are cut."""

    accelerator: str = setting("", "Name in the table of accelerators, such as `H200 SXM`; empty for none.")
    count: int = setting(1, "Accelerators of this side.", ge=1, le=_MOST_PARTS)
    usd_per_gpu_hour: float = setting(
        0.0, "Price of one; 0 takes the table's, where it has one.", ge=0.0, le=1e4
    )
    tensor_parallel: int = setting(1, "Accelerators that share each layer's matrices.", ge=1, le=_MOST_PARTS)
    expert_parallel: int = setting(1, "Accelerators that share the experts.", ge=1, le=_MOST_PARTS)
    pipeline_parallel: int = setting(1, "Accelerators in a row, each with some layers.", ge=1, le=_MOST_PARTS)
    context_parallel: int = setting(1, "Accelerators that share a sequence.", ge=1, le=_MOST_PARTS)
    weights: Precision = setting("bf16", "Precision of weights and matrix products.")


@dataclass(frozen=True, slots=True)
class GeneratorPoolSettings(PoolSettings):
    """Section [hardware.generator]: the engines, their accelerators, and how fast they are."""

    kv: Precision = setting("bf16", "Precision of keys and values.")
    prefill_count: int = setting(
        0,
        "Of `count`, those that prefill only (prefill and decode split); 0 lets each replica do both.",
        ge=0,
        le=_MOST_PARTS,
    )
    kv_offload_gb: float = setting(0.0, "Host memory for keys and values, a replica.", ge=0.0, le=1e6)
    speculative_tokens: float = setting(
        1.0,
        "Mean tokens that one decode iteration gives a request; 1 without speculative decoding.",
        ge=1.0,
        le=100.0,
    )
    memory_fraction: float = setting(0.9, "Of an accelerator's memory that the engine uses.", ge=0.01, le=1.0)
    max_running: int = setting(
        0, "Requests of a replica at once; 0 takes generator.max_running.", ge=0, le=65536
    )
    replicas: int = setting(0, "Engines; 0 cuts them by count and parallelism.", ge=0, le=MOST_REPLICAS)
    bandwidth_efficiency: float = setting(
        0.85, "Of the memory bandwidth that decoding reaches. A constant to fit.", ge=0.001, le=1.0
    )
    compute_efficiency: float = setting(
        0.6, "Of the peak FLOP/s that prefill reaches. A constant to fit.", ge=0.001, le=1.0
    )
    layer_s: float = setting(
        32e-6,
        "Of a layer's kernels in an iteration, whatever their load; one with experts counts twice. To fit.",
        ge=0.0,
        le=1.0,
    )
    iteration_s: float = setting(
        0.01,
        "Of a decode iteration, whatever its load and model: sampling, scheduling. To fit.",
        ge=0.0,
        le=100.0,
    )


@dataclass(frozen=True, slots=True)
class TrainerPoolSettings(PoolSettings):
    """Section [hardware.trainer]: its accelerators and how fast it is."""

    mfu: float = setting(
        0.12,
        "Of the peak FLOP/s while it computes (convention: causal attention, real lengths). To fit.",
        ge=0.0001,
        le=1.0,
    )
    fixed_s: float = setting(0.0, "Of a step, whatever its batch.", ge=0.0, le=_MOST_S)
    offload_optimizer: bool = setting(False, "Optimizer state in host memory.")
    offload_activations: bool = setting(False, "Activations in host memory.")


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """Section [hardware]: the machines of both sides."""

    trainer: TrainerPoolSettings
    generator: GeneratorPoolSettings
    shared_tenants: int = setting(
        1, "Runs that share the generator; each gets its part of every replica.", ge=1, le=1000
    )


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """Section [workload]: what rollouts do, and how that drifts. Lengths and times are lognormal."""

    prompt_tokens: int = setting(512, "Tokens before the first answer.", ge=1, le=_MOST_TOKENS)
    turns: float = setting(1.0, "Mean turns of a rollout.", ge=1.0, le=10_000.0)
    turns_sigma: float = setting(0.0, "Of the logarithm of the number of turns.", ge=0.0, le=_MOST_SIGMA)
    max_turns: int = setting(0, "Turns at most; 0 for no limit.", ge=0, le=10_000)
    answer_tokens: float = setting(
        256.0, "Mean tokens of one answer, before any limit cuts it.", ge=1.0, le=_MOST_TOKENS
    )
    answer_sigma: float = setting(0.6, "Of the logarithm of an answer's tokens.", ge=0.0, le=_MOST_SIGMA)
    rollout_sigma: float = setting(
        0.0,
        "Of a factor that all answers of one rollout share: what makes whole rollouts long.",
        ge=0.0,
        le=_MOST_SIGMA,
    )
    task_sigma: float = setting(
        0.0, "Of a factor that all rollouts of one task share.", ge=0.0, le=_MOST_SIGMA
    )
    max_tokens: int = setting(
        0, "Context at which a rollout is cut; 0 takes generator.max_context_tokens.", ge=0, le=_MOST_TOKENS
    )
    observation_tokens: float = setting(0.0, "Mean tokens that each tool call adds.", ge=0.0, le=_MOST_TOKENS)
    tool_s: float = setting(
        0.0, "Mean seconds of a tool call; each turn but the last has one.", ge=0.0, le=_MOST_S
    )
    tool_sigma: float = setting(0.0, "Of the logarithm of its seconds.", ge=0.0, le=_MOST_SIGMA)
    final_tool: bool = setting(False, "Whether the last turn has a tool call too.")
    score_s: float = setting(0.0, "Mean seconds of a reward.", ge=0.0, le=_MOST_S)
    score_sigma: float = setting(0.0, "Of the logarithm of its seconds.", ge=0.0, le=_MOST_SIGMA)
    solve_alpha: float = setting(
        1.0, "Tasks' solve rates are Beta(solve_alpha, solve_beta).", ge=0.001, le=1e6
    )
    solve_beta: float = setting(1.0, "See solve_alpha.", ge=0.001, le=1e6)
    learning: float = setting(
        0.0, "What each step adds to the log-odds of every task's solve rate.", ge=-10.0, le=10.0
    )
    uses_sandbox: bool = setting(False, "Whether rollouts with a tool call need a sandbox.")
    failure_rate: float = setting(0.0, "Rollouts that end as infrastructure failures.", ge=0.0, le=0.99)
    failure_after: float = setting(0.5, "Of its turns that such a rollout takes before.", ge=0.0, le=1.0)
    drift: dict[str, float] = setting(
        dict,
        "Factors that quantities of this section reach after drift_steps steps, along a straight line: "
        "{ answer_tokens = 3.0, turns = 2.5 }.",
        ge=0.001,
        le=1000.0,
    )
    drift_steps: int = setting(100, "See drift; afterwards they stay.", ge=1, le=1_000_000_000)

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        for name in self.drift:
            if name not in DRIFTING:
                rule = f"names a quantity that cannot drift ({name}): {', '.join(DRIFTING)} can"
                yield Problem(
                    "drift", self.drift, rule, did_you_mean(nearest(name, DRIFTING)) or "Leave it out"
                )


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Section [fleet]: how sandboxes start, beside sandbox.max_live."""

    start_s: float = setting(1.0, "Mean seconds of a start that nothing holds up.", ge=0.0, le=_MOST_S)
    start_sigma: float = setting(0.0, "Of the logarithm of its seconds.", ge=0.0, le=_MOST_SIGMA)
    creates_per_s: float = setting(
        0.0, "Creates that the provider takes a second; 0 for no limit.", ge=0.0, le=1e6
    )
    burst: int = setting(0, "Creates that it takes at once before that limit holds.", ge=0, le=1_000_000)
    max_starting: int = setting(
        0, "Sandboxes that may be starting at once at the provider; 0 for no limit.", ge=0, le=1_000_000
    )
    start_timeout_s: float = setting(0.0, "After which a start is given up; 0 for never.", ge=0.0, le=_MOST_S)
    retries: int = setting(0, "Further tries after a start that was given up.", ge=0, le=1000)
    failure_rate: float = setting(0.0, "Starts that fail.", ge=0.0, le=1.0)


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Section [timings]: measured, as `headway calibrate` writes them. A value here beats the formula.

    A decode iteration of a replica takes decode_base_s + decode_row_s * running + decode_token_s * resident
    tokens; a prefill prefill_base_s + prefill_token_s * tokens; a step step_base_s + step_row_s * rows +
    step_token_s * tokens. None leaves it to [hardware].
    """

    decode_base_s: float | None = setting(
        None, "Seconds of an iteration, whatever its load.", ge=0.0, le=_MOST_S
    )
    decode_row_s: float | None = setting(None, "Seconds more for each running request.", ge=0.0, le=_MOST_S)
    decode_token_s: float | None = setting(None, "Seconds more for each resident token.", ge=0.0, le=_MOST_S)
    prefill_base_s: float | None = setting(
        None, "Seconds of a prefill, whatever its length.", ge=0.0, le=_MOST_S
    )
    prefill_token_s: float | None = setting(None, "Seconds more for each token.", ge=0.0, le=_MOST_S)
    kv_tokens: int | None = setting(
        None, "Tokens whose keys and values fit a replica; 0 for no end.", ge=0, le=10**12
    )
    step_base_s: float | None = setting(None, "Seconds of a step, whatever its batch.", ge=0.0, le=_MOST_S)
    step_row_s: float | None = setting(None, "Seconds more for each rollout.", ge=0.0, le=_MOST_S)
    step_token_s: float | None = setting(
        None, "Seconds more for each token, prompts included.", ge=0.0, le=_MOST_S
    )
    load_s: float | None = setting(None, "Between a batch's release and computing.", ge=0.0, le=_MOST_S)
    publish_s: float | None = setting(None, "To write a version.", ge=0.0, le=_MOST_S)
    apply_s: float | None = setting(
        None, "That a replica stands still to take up a version.", ge=0.0, le=_MOST_S
    )
    save_s: float | None = setting(None, "To write a checkpoint, beside training.", ge=0.0, le=_MOST_S)

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        for names in (("decode_base_s", "decode_row_s", "decode_token_s"), ("step_base_s", "step_token_s")):
            given = [name for name in names if getattr(self, name) is not None]
            if given and len(given) < len(names):
                missing = next(name for name in names if name not in given)
                rule = f"{', '.join(names)} describe one line and are given together"
                yield Problem(missing, None, rule, "Give it too; 0 where it has no part.")
        for names, what in (
            (("decode_base_s", "decode_row_s", "decode_token_s"), "an iteration"),
            (("step_base_s", "step_row_s", "step_token_s"), "a step"),
        ):
            times = [time for name in names if (time := getattr(self, name)) is not None]
            if getattr(self, names[0]) is not None and sum(times) < _LEAST_S:
                rule = f"{' + '.join(names)} must be at least {_LEAST_S:g}: {what} takes time"
                yield Problem(
                    names[0], getattr(self, names[0]), rule, f"Give {what}'s seconds, or leave them out."
                )
