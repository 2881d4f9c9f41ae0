"""Whether a model fits its accelerators, and what is left for keys and values.

Trainer, bytes of one accelerator (P parameters and T trained ones over all n of them, as FSDP and the other
parallel cuts have it):
    weights       2 P / n in bf16, and one layer gathered: 2 P_layer / tensor_parallel
    gradients     4 T / n
    optimizer     12 T / n: a copy in f32 and AdamW's two moments; in host memory with offload_optimizer
    activations   2 L h s recomputed from each layer's input (in host memory with offload_activations), and
                  one layer's own, 34 h s; s = the longest row / context_parallel / tensor_parallel
Generator: weights over the replica's accelerators; the rest of memory_fraction holds keys and values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.matching.engine import cut_replica, kv_bytes_per_token
from headway.matching.hardware import BYTES

if TYPE_CHECKING:
    from headway.matching.hardware import Accelerator
    from headway.matching.model_facts import ModelNumbers
    from headway.matching.spec import GeneratorPoolSettings, TrainerPoolSettings

_USABLE = 0.94  # of the trainer's memory: the rest is the driver's, the collectives' and fragmentation
_LAYER_BYTES = 34.0  # activations of one layer for each token and value of the residual stream


def trainer_bytes(
    model: ModelNumbers, pool: TrainerPoolSettings, trained_params: float, row_tokens: int
) -> dict[str, float]:
    """Return what one accelerator of the trainer holds, bytes by kind."""
    width, rows = pool.count, row_tokens / (pool.context_parallel * pool.tensor_parallel)
    weight = BYTES[pool.weights]
    layer = model.attention_params
    layer += 3 * model.hidden * model.intermediate if model.dense_layers else 0
    if model.experts:
        layer += model.expert_params * model.experts / max(1, pool.expert_parallel)
    kept = 0.0 if pool.offload_activations else 2.0 * model.layers * model.hidden * rows
    return {
        "weights": weight * model.params / width,
        "one layer gathered": weight * layer / pool.tensor_parallel,
        "gradients": 4.0 * trained_params / width,
        "optimizer": 0.0 if pool.offload_optimizer else 12.0 * trained_params / width,
        "activations": kept / pool.pipeline_parallel + _LAYER_BYTES * model.hidden * rows,
    }


def check_trainer(
    model: ModelNumbers,
    accelerator: Accelerator,
    pool: TrainerPoolSettings,
    trained_params: float,
    row_tokens: int,
) -> dict[str, float]:
    """Return what one accelerator holds; raise UserError when it is more than there is."""
    parts = trainer_bytes(model, pool, trained_params, row_tokens)
    needed, there = sum(parts.values()), accelerator.memory_bytes * _USABLE
    if needed <= there:
        return parts
    shown = ", ".join(f"{name} {_gb(size)}" for name, size in parts.items() if size)
    rule = (
        f"the trainer must fit: each of {pool.count} {accelerator.name} needs {_gb(needed)} ({shown}) "
        f"and has {_gb(there)}, {_gb(needed - there)} too little"
    )
    raise UserError(rule, key="hardware.trainer.count", value=pool.count, remedy=_remedy(pool, parts, there))


def _remedy(pool: TrainerPoolSettings, parts: dict[str, float], there: float) -> str:
    needed = sum(parts.values())
    if not pool.offload_optimizer and needed - parts["optimizer"] <= there:
        return "Set hardware.trainer.offload_optimizer = true"
    if not pool.offload_activations and needed - parts["activations"] <= there:
        return "Set hardware.trainer.offload_activations = true, or raise context_parallel"
    shared = parts["gradients"] + parts["optimizer"] + parts["weights"]
    room = there - parts["activations"] - parts["one layer gathered"]
    if room > 0:
        unit = math.lcm(
            pool.tensor_parallel * pool.context_parallel * pool.pipeline_parallel,
            max(1, pool.expert_parallel),
        )
        count = unit * math.ceil((int(pool.count * shared / room) + 1) / unit)
        return f"Use hardware.trainer.count = {count} or more"
    return "Raise hardware.trainer.context_parallel, or shorten rows by workload.max_tokens"


def kv_room(
    model: ModelNumbers, accelerator: Accelerator, pool: GeneratorPoolSettings, longest_tokens: int
) -> int:
    """Return the tokens whose keys and values fit into a replica.

    Raises UserError when the weights do not fit, or leave no room for one context of `longest_tokens`.
    """
    cut = cut_replica(pool, model)
    experts = model.routed_params * BYTES[pool.weights] / cut.expert_shards
    rest = (model.params - model.routed_params) * BYTES[pool.weights] / cut.tensor
    weights, there = experts + rest, accelerator.memory_bytes * pool.memory_fraction
    left = there - weights
    tokens = int(max(0.0, left) * cut.kv_shards / kv_bytes_per_token(model, pool))
    one_copy = tokens // cut.copies
    if left > 0 and model.held_tokens(longest_tokens) <= one_copy:
        return tokens
    head = f"a replica must fit: each of its {cut.gpus} {accelerator.name} holds {_gb(weights)} of weights"
    if left <= 0:
        rule = f"{head} and has {_gb(there)} for them, {_gb(-left)} too little"
        more = f"Raise hardware.generator.tensor_parallel or expert_parallel above {cut.expert_shards}"
        remedy = f'{more}, or use weights = "fp8"' if pool.weights != "fp8" else more
    else:
        rule = (
            f"{head}, which leaves keys and values of {one_copy} tokens where the longest context has "
            f"{longest_tokens}"
        )
        remedy = 'Use hardware.generator.kv = "fp8" or more tensor_parallel, or lower workload.max_tokens'
    raise UserError(rule, key="hardware.generator.count", value=pool.count, remedy=remedy)


def offload_room(model: ModelNumbers, pool: GeneratorPoolSettings) -> int:
    """Return the tokens whose keys and values fit into a replica's host memory."""
    return int(pool.kv_offload_gb * 1e9 / kv_bytes_per_token(model, pool))


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
