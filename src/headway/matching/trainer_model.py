"""How long a step takes: FLOPs over what the accelerators reach, and what does not shrink with them.

    step = fixed_s + FLOPs / (count * peak * mfu) / (1 - bubble) + offload
mfu is what the step reaches while it computes, without the pipeline's bubble (p - 1) / (m + p - 1) over m
micro-batches and without the optimizer's time in host memory. Its convention is that of
`model_facts.CONVENTION`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.matching.hardware import BYTES, Accelerator
from headway.matching.model_facts import ModelNumbers
from headway.matching.spec import TimingSettings, TrainerPoolSettings

HOST_BYTES_PER_S = 50e9
"""Between an accelerator and its host's memory, and of one accelerator's part of that memory's bandwidth."""
_OPTIMIZER_BYTES = 6.0  # a trained parameter, up and down: gradient f32, weight bf16
_ADAM_BYTES = 28.0  # read and written of a parameter in host memory: weight, gradient and two moments, f32


@dataclass(frozen=True, slots=True)
class RooflineTrainer:
    """A `TrainerModel` by FLOPs and measured efficiency, with measured times in their place where given."""

    model: ModelNumbers | None  # None where every time is measured
    accelerator: Accelerator | None
    pool: TrainerPoolSettings
    timings: TimingSettings
    lora_params: int | None  # None where every weight is trained
    replica_link: float  # bytes/s at which a replica reads new weights, 0 for at once
    served_bytes: float  # of the weights that a replica takes up

    @property
    def trained_params(self) -> float:
        """Parameters that the optimizer moves."""
        if self.lora_params is not None:
            return float(self.lora_params)
        return float(self.model.params) if self.model is not None else 0.0

    def flops(self, num_tokens: float, sum_squares: float) -> float:
        """Return the FLOPs of a step, 0 for a model whose shape is not known."""
        if self.model is None:
            return 0.0
        return self.model.train_flops(num_tokens, sum_squares, lora_params=self.lora_params)

    @property
    def peak(self) -> float:
        """Dense peak FLOP/s of all the trainer's accelerators, 0 when unknown."""
        return self.pool.count * self.accelerator.peak(self.pool.weights) if self.accelerator else 0.0

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        """Return the seconds of a step: forward, backward, optimizer."""
        timings = self.timings
        if timings.step_base_s is not None:
            row_s, token_s = timings.step_row_s or 0.0, timings.step_token_s or 0.0
            return timings.step_base_s + row_s * num_rows + token_s * num_tokens
        compute_s = self.flops(num_tokens, sum_squares) / (self.peak * self.pool.mfu)
        return self.pool.fixed_s + compute_s / (1.0 - self.bubble(num_rows)) + self.offload_s

    def bubble(self, num_rows: float) -> float:
        """Return the share of time that pipeline stages stand still: micro-batches of one row each."""
        stages = self.pool.pipeline_parallel
        if stages == 1:
            return 0.0
        width = self.pool.tensor_parallel * self.pool.context_parallel * stages
        micro_batches = max(1.0, num_rows / max(1, self.pool.count // width))
        return (stages - 1) / (micro_batches + stages - 1)

    @property
    def offload_s(self) -> float:
        """Seconds of a step's optimizer in host memory, over the machines' links and memory."""
        if not self.pool.offload_optimizer:
            return 0.0
        num_bytes = self.trained_params * (_OPTIMIZER_BYTES + _ADAM_BYTES)
        return num_bytes / self.pool.count / HOST_BYTES_PER_S

    @property
    def load_s(self) -> float:
        """Seconds between a batch's release and the start of computing."""
        return self.timings.load_s or 0.0

    @property
    def publish_s(self) -> float:
        """Seconds to write a version: what is trained, over the trainer's network links."""
        if self.timings.publish_s is not None:
            return self.timings.publish_s
        if self.accelerator is None:
            return 0.0
        num_bytes = self.trained_params * BYTES[self.pool.weights]
        return num_bytes / (self.pool.count * self.accelerator.internode)

    @property
    def apply_s(self) -> float:
        """Seconds that a replica stands still to take up a version."""
        if self.timings.apply_s is not None:
            return self.timings.apply_s
        if not self.replica_link:
            return 0.0
        num_bytes = self.served_bytes
        if self.lora_params is not None:
            num_bytes = self.lora_params * BYTES["bf16"]
        return num_bytes / self.replica_link

    @property
    def save_s(self) -> float:
        """Seconds until a checkpoint is written, beside training: 14 bytes a parameter at 2 GB/s a host."""
        if self.timings.save_s is not None:
            return self.timings.save_s
        return 14.0 * self.trained_params / (max(1, self.pool.count // 8) * 2e9)
