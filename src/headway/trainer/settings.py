"""The [trainer] settings. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import Problem, setting

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How the trainer turns a batch into a step."""

    threads: int = setting(0, "CPU threads of the trainer; 0 lets the runtime divide the cores.", ge=0)
    ranks: int = setting(
        1,
        "Processes of the trainer on this machine that share each batch; its threads are divided among them. "
        "Each holds the whole model and optimizer. The gradient is the same to rounding.",
        ge=1,
        le=64,
    )
    learning_rate: float = setting(
        5e-4, "Peak learning rate of AdamW; 5e-4 suits LoRA, 1e-5 full fine-tuning of small models.", gt=0
    )
    warmup_steps: int = setting(0, "Steps over which the learning rate rises from 0.", ge=0)
    schedule: Schedule = setting(
        "constant", "After the warm-up: constant, or linear down to 0 at decay_steps."
    )
    decay_steps: int = setting(0, "Step at which the linear schedule reaches 0.", ge=0)
    weight_decay: float = setting(0.0, "Decoupled weight decay of AdamW.", ge=0)
    beta1: float = setting(0.9, "AdamW's decay of the mean of gradients.", ge=0, lt=1)
    beta2: float = setting(0.999, "AdamW's decay of the mean of squared gradients.", ge=0, lt=1)
    eps: float = setting(1e-8, "Added to AdamW's denominator.", gt=0)
    max_grad_norm: float = setting(1.0, "The gradient is scaled down to this norm.", gt=0)
    full: bool = setting(False, "Train every weight; false trains LoRA factors.")
    lora_rank: int = setting(16, "Rank of the LoRA factors.", ge=1)
    lora_alpha: float = setting(32.0, "LoRA's alpha: factors are scaled by lora_alpha / lora_rank.", gt=0)
    lora_targets: str = setting(
        "all-linear",
        "Layers that get LoRA factors: all-linear (the output layer left out), or names joined by commas, "
        "such as q_proj,v_proj. In a model with experts attention alone can have them.",
    )
    replay_routing: bool = setting(
        True,
        "Models with experts: send each token to the experts that it was sent to when it was generated, with "
        "the trainer's own weights for them; false lets the trainer's router choose. Rollouts carry the "
        "experts' numbers: 2 bytes for each token, layer with experts, and expert.",
    )
    micro_batch_tokens: int = setting(
        1024,
        "Most positions in one packed forward pass; a longer sequence has a pass of its own. Memory grows "
        "with it; a group that fits one pass shares all that it can.",
        ge=1,
    )
    gradient_checkpointing: bool = setting(
        False, "Recompute activations in the backward pass: less memory, about a third more time."
    )

    def problems(self) -> list[Problem]:
        """Return the rules between these settings that do not hold."""
        found: list[Problem] = []
        if self.schedule == "linear" and self.decay_steps <= self.warmup_steps:
            rule = f"the linear schedule needs decay_steps above warmup_steps = {self.warmup_steps}"
            found.append(Problem("decay_steps", self.decay_steps, rule, "Set it to the run's last step"))
        return found
