"""What a SPEC says beyond a run's config: hardware, workload, sandbox fleet, and measured times.

A SPEC is a TOML file with the sections of a run's config (each optional here) and these beside them. A run's
config is a SPEC once `[hardware]` or `[timings]` says what its machines do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headway.core.settings import Problem, setting

Precision = Literal["f32", "bf16", "fp8"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Sections [hardware.trainer] and [hardware.generator]: one kind of accelerators and how they are cut."""

    accelerator: str = setting("", "Name in the table of accelerators, such as `H200 SXM`; empty for none.")
    count: int = setting(1, "Accelerators of this side.", ge=1)
    usd_per_gpu_hour: float = setting(0.0, "Price of one; 0 takes the table's, where it has one.", ge=0.0)
    tensor_parallel: int = setting(1, "Accelerators that share each layer's matrices.", ge=1)
    expert_parallel: int = setting(1, "Accelerators that share the experts.", ge=1)
    pipeline_parallel: int = setting(1, "Accelerators in a row, each with some layers.", ge=1)
    context_parallel: int = setting(1, "Accelerators that share a sequence.", ge=1)
    weights: Precision = setting("bf16", "Precision of weights and matrix products.")


@dataclass(frozen=True, slots=True)
class GeneratorPoolSettings(PoolSettings):
    """Section [hardware.generator]."""

    kv: Precision = setting("bf16", "Precision of keys and values.")
    prefill_count: int = setting(
        0,
        "Of `count`, those that prefill only (prefill and decode split); 0 lets each replica do both.",
        ge=0,
    )
    kv_offload_gb: float = setting(0.0, "Host memory for keys and values, a replica.", ge=0.0)
    speculative_tokens: float = setting(
        1.0, "Mean tokens that one decode iteration gives a request; 1 without speculative decoding.", ge=1.0
    )
    memory_fraction: float = setting(0.9, "Of an accelerator's memory that the engine uses.", gt=0.0, le=1.0)
    max_running: int = setting(0, "Requests of a replica at once; 0 takes generator.max_running.", ge=0)
    replicas: int = setting(0, "Engines; 0 cuts them by count and parallelism.", ge=0)
    bandwidth_efficiency: float = setting(
        0.85, "Of the memory bandwidth that decoding reaches. A constant to fit.", gt=0.0, le=1.0
    )
    compute_efficiency: float = setting(
        0.6, "Of the peak FLOP/s that prefill reaches. A constant to fit.", gt=0.0, le=1.0
    )
    layer_s: float = setting(
        32e-6,
        "Of a layer's kernels in an iteration, whatever their load; one with experts counts twice. To fit.",
        ge=0.0,
    )
    iteration_s: float = setting(
        0.01, "Of a decode iteration, whatever its load and model: sampling, scheduling. To fit.", ge=0.0
    )


@dataclass(frozen=True, slots=True)
class TrainerPoolSettings(PoolSettings):
    """Section [hardware.trainer]."""

    mfu: float = setting(
        0.12, "Of the peak FLOP/s while it computes (convention: telemetry.peak_flops_per_s). To fit.", gt=0.0
    )
    fixed_s: float = setting(0.0, "Of a step, whatever its batch.", ge=0.0)
    offload_optimizer: bool = setting(False, "Optimizer state in host memory.")
    offload_activations: bool = setting(False, "Activations in host memory.")


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """Section [hardware]."""

    trainer: TrainerPoolSettings
    generator: GeneratorPoolSettings
    shared_tenants: int = setting(
        1, "Runs that share the generator; each gets its part of every replica.", ge=1
    )


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """Section [workload]: what rollouts do, and how that drifts. Lengths and times are lognormal."""

    prompt_tokens: int = setting(512, "Tokens before the first answer.", ge=1)
    turns: float = setting(1.0, "Mean turns of a rollout.", ge=1.0)
    turns_sigma: float = setting(0.0, "Of the logarithm of the number of turns.", ge=0.0)
    max_turns: int = setting(0, "Turns at most; 0 for no limit.", ge=0)
    answer_tokens: float = setting(256.0, "Mean tokens of one answer, before any limit cuts it.", ge=1.0)
    answer_sigma: float = setting(0.6, "Of the logarithm of an answer's tokens.", ge=0.0)
    rollout_sigma: float = setting(
        0.0, "Of a factor that all answers of one rollout share: what makes whole rollouts long.", ge=0.0
    )
    task_sigma: float = setting(0.0, "Of a factor that all rollouts of one task share.", ge=0.0)
    max_tokens: int = setting(
        0, "Context at which a rollout is cut; 0 takes generator.max_context_tokens.", ge=0
    )
    observation_tokens: float = setting(0.0, "Mean tokens that each tool call adds.", ge=0.0)
    tool_s: float = setting(0.0, "Mean seconds of a tool call; each turn but the last has one.", ge=0.0)
    tool_sigma: float = setting(0.0, "Of the logarithm of its seconds.", ge=0.0)
    score_s: float = setting(0.0, "Mean seconds of a reward.", ge=0.0)
    score_sigma: float = setting(0.0, "Of the logarithm of its seconds.", ge=0.0)
    solve_alpha: float = setting(1.0, "Tasks' solve rates are Beta(solve_alpha, solve_beta).", gt=0.0)
    solve_beta: float = setting(1.0, "See solve_alpha.", gt=0.0)
    learning: float = setting(0.0, "What each step adds to the log-odds of every task's solve rate.")
    uses_sandbox: bool = setting(False, "Whether rollouts with a tool call need a sandbox.")
    failure_rate: float = setting(0.0, "Rollouts that end as infrastructure failures.", ge=0.0, le=1.0)
    failure_after: float = setting(0.5, "Of its turns that such a rollout takes before.", ge=0.0, le=1.0)
    drift: dict[str, float] = setting(
        dict,
        "Factors that quantities of this section reach after drift_steps steps, along a straight line: "
        "{ answer_tokens = 3.0, turns = 2.5 }.",
        gt=0.0,
    )
    drift_steps: int = setting(100, "See drift; afterwards they stay.", ge=1)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Section [fleet]: how sandboxes start, beside sandbox.max_live."""

    start_s: float = setting(1.0, "Mean seconds of a start that nothing holds up.", ge=0.0)
    start_sigma: float = setting(0.0, "Of the logarithm of its seconds.", ge=0.0)
    creates_per_s: float = setting(0.0, "Creates that the provider takes a second; 0 for no limit.", ge=0.0)
    burst: int = setting(0, "Creates that it takes at once before that limit holds.", ge=0)
    max_starting: int = setting(
        0, "Sandboxes that may be starting at once at the provider; 0 for no limit.", ge=0
    )
    start_timeout_s: float = setting(0.0, "After which a start is given up; 0 for never.", ge=0.0)
    retries: int = setting(0, "Further tries after a start that was given up.", ge=0)
    failure_rate: float = setting(0.0, "Starts that fail.", ge=0.0, le=1.0)


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Section [timings]: measured, as `headway calibrate` writes them. A value here beats the formula.

    A decode iteration of a replica takes decode_base_s + decode_row_s * running + decode_token_s * resident
    tokens; a prefill prefill_base_s + prefill_token_s * tokens; a step step_base_s + step_row_s * rows +
    step_token_s * tokens. None leaves it to [hardware].
    """

    decode_base_s: float | None = setting(None, "Seconds of an iteration, whatever its load.", ge=0.0)
    decode_row_s: float | None = setting(None, "Seconds more for each running request.", ge=0.0)
    decode_token_s: float | None = setting(None, "Seconds more for each resident token.", ge=0.0)
    prefill_base_s: float | None = setting(None, "Seconds of a prefill, whatever its length.", ge=0.0)
    prefill_token_s: float | None = setting(None, "Seconds more for each token.", ge=0.0)
    kv_tokens: int | None = setting(None, "Tokens whose keys and values fit a replica; 0 for no end.", ge=0)
    step_base_s: float | None = setting(None, "Seconds of a step, whatever its batch.", ge=0.0)
    step_row_s: float | None = setting(None, "Seconds more for each rollout.", ge=0.0)
    step_token_s: float | None = setting(None, "Seconds more for each token, prompts included.", ge=0.0)
    load_s: float | None = setting(None, "Between a batch's release and computing.", ge=0.0)
    publish_s: float | None = setting(None, "To write a version.", ge=0.0)
    apply_s: float | None = setting(None, "That a replica stands still to take up a version.", ge=0.0)
    save_s: float | None = setting(None, "To write a checkpoint, beside training.", ge=0.0)

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        for names in (("decode_base_s", "decode_row_s", "decode_token_s"), ("step_base_s", "step_token_s")):
            given = [name for name in names if getattr(self, name) is not None]
            if given and len(given) < len(names):
                missing = next(name for name in names if name not in given)
                rule = f"{', '.join(names)} describe one line and are given together"
                yield Problem(missing, None, rule, "Give it too; 0 where it has no part.")
