"""Fewer and larger operations in place of a transformers model's chains of small ones.

`fuse` replaces the forward methods of the norms, attention layers and gated feed-forward blocks of a loaded
model; its modules, parameters and their names stay transformers' and peft's own. What changes is the time
and what is kept for the backward pass:

    norms          one function that keeps its input and one number a row
    linear layers  those that read the same input are one function, LoRA factors included: the factors' part
                   is added into the product, and the inputs' gradients into one another
    rotary         four products in each direction, nothing kept
    feed-forward   gate and up are kept; their product is computed again in the backward pass

Log-probs and gradients equal the model's own to rounding (tests hold 1e-5). Frozen parameters get no
gradient computed. Experts and routers are left as they are.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from peft.tuners.lora import Linear as LoraLinear
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headway.trainer.attention import tree_attention
from headway.trainer.fused_functions import Linear, gated_linear, linears, norm, rotary

if TYPE_CHECKING:
    from torch import Tensor


def fuse(model: Any) -> None:
    """Replace the forward methods of a model of one of the families, with LoRA factors or without.

    A model of mixed types is left as it is.
    """
    if len({parameter.dtype for parameter in model.parameters()}) != 1:
        return
    for module in model.modules():
        name = type(module).__name__
        if hasattr(module, "variance_epsilon"):
            module.forward = types.MethodType(_norm_forward, module)
        elif hasattr(module, "q_proj"):
            module.forward = types.MethodType(_attention_forward, module)
        elif hasattr(module, "gate_proj") and name.endswith("MLP"):
            module.forward = types.MethodType(_mlp_forward, module)


def _norm_forward(module: Any, hidden_states: Tensor) -> Tensor:
    return norm(hidden_states, module.weight, module.variance_epsilon)


def _mlp_forward(module: Any, x: Tensor) -> Tensor:
    gate, up = _linears(x, module.gate_proj, module.up_proj)
    return gated_linear(gate, up, _parts(module.down_proj))


def _attention_forward(
    module: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    for name in ("cache", "use_cache", "position_ids"):
        kwargs.pop(name, None)
    shape = hidden_states.shape[:-1]
    q, k, v = (
        each.view(*shape, -1, module.head_dim)
        for each in _linears(hidden_states, module.q_proj, module.k_proj, module.v_proj)
    )
    if hasattr(module, "q_norm"):
        q, k = module.q_norm(q), module.k_norm(k)
    cos, sin = (each.unsqueeze(2)[..., : module.head_dim // 2] for each in position_embeddings)
    q, k = (rotary(each, cos, sin) for each in (q, k))
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, tree_attention)
    out, weights = attend(
        module,
        *(each.transpose(1, 2) for each in (q, k, v)),
        attention_mask,
        dropout=0.0,
        scaling=module.scaling,
        **kwargs,
    )
    (out,) = _linears(out.reshape(*shape, -1), module.o_proj)
    return out, weights


def _linears(x: Tensor, *modules: Any) -> tuple[Tensor, ...]:
    return linears(x, map(_parts, modules))


def _parts(module: Any) -> Linear:
    """Return what a torch linear layer, or peft's around one, multiplies by."""
    base: Any = module.base_layer if (adapted := type(module) is LoraLinear) else module
    if not adapted or module.disable_adapters:
        return Linear(base.weight, base.bias, None, None, 0.0)
    (name,) = module.active_adapters
    a: Any = module.lora_A[name]
    b: Any = module.lora_B[name]
    return Linear(base.weight, base.bias, a.weight, b.weight, module.scaling[name])
