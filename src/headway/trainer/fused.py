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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headway.trainer.attention import tree_attention

if TYPE_CHECKING:
    from collections.abc import Sequence


class Linear(NamedTuple):
    """What a linear layer multiplies by: x W' + b + scale (x A') B'."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    a: Tensor | None  # [rank, in]
    b: Tensor | None  # [out, rank]
    scale: float


_PARTS = len(Linear._fields)


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
    return _Norm.apply(hidden_states, module.weight, module.variance_epsilon)  # pyright: ignore


def _mlp_forward(module: Any, x: Tensor) -> Tensor:
    gate, up = _linears(x, module.gate_proj, module.up_proj)
    return _GatedLinear.apply(gate, up, *_parts(module.down_proj))  # pyright: ignore


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
    q, k = (_Rotary.apply(each, cos, sin) for each in (q, k))  # pyright: ignore
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
    return _Linears.apply(x, *(part for module in modules for part in _parts(module)))  # pyright: ignore


def _parts(module: Any) -> Linear:
    """Return what a torch linear layer, or peft's around one, multiplies by."""
    base: Any = module.base_layer if (adapted := type(module) is LoraLinear) else module
    if not adapted or module.disable_adapters:
        return Linear(base.weight, base.bias, None, None, 0.0)
    (name,) = module.active_adapters
    a: Any = module.lora_A[name]
    b: Any = module.lora_B[name]
    return Linear(base.weight, base.bias, a.weight, b.weight, module.scaling[name])


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        (grad,) = grads
        weight_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = (grad * x).mul_(inverse).flatten(0, -2).sum(0)
        if not ctx.needs_input_grad[0]:
            return None, weight_grad, None
        grad = grad * weight
        along = torch.linalg.vecdot(grad, x)[..., None]
        along = along.mul_(inverse.pow(3)).div_(-x.shape[-1])
        return grad.mul_(inverse).addcmul_(x, along), weight_grad, None


class _Rotary(torch.autograd.Function):
    """x [1, s, heads, d] turned by angles of cosines and sines [1, s, 1, d / 2]; halves are pairs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, sin, -1.0), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (low, high), (out_low, out_high) = x.chunk(2, -1), out.chunk(2, -1)
    torch.mul(low, cos, out=out_low).addcmul_(high, sin, value=-sign)
    torch.mul(high, cos, out=out_high).addcmul_(low, sin, value=sign)
    return out


class _Linears(torch.autograd.Function):
    """Linear layers of one input; arguments are x and each layer's `Linear`, one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parts: Any) -> tuple[Tensor, ...]:
        rows = x.reshape(-1, x.shape[-1])
        layers = [Linear(*parts[at : at + _PARTS]) for at in range(0, len(parts), _PARTS)]
        outputs = [_product(rows, layer) for layer in layers]
        _save(ctx, layers, rows, *(low for _, low in outputs))
        ctx.shape = x.shape
        return tuple(out.view(*x.shape[:-1], -1) for out, _ in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        layers, (rows, *lows) = _saved(ctx)
        x_grad: Tensor | None = None
        found: list[Any] = []
        for index, (layer, low, grad) in enumerate(zip(layers, lows, grads, strict=True)):
            needs = ctx.needs_input_grad[1 + index * _PARTS :][:_PARTS]
            grad = grad.reshape(-1, grad.shape[-1])
            x_grad, own = _gradients(grad, rows, low, layer, needs, x_grad, ctx.needs_input_grad[0])
            found += own
        return None if x_grad is None else x_grad.view(ctx.shape), *found


class _GatedLinear(torch.autograd.Function):
    """A linear layer of silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, *parts: Any) -> Tensor:
        layer = Linear(*parts)
        product = functional.silu(gate).mul_(up)
        out, low = _product(product.view(-1, product.shape[-1]), layer)
        _save(ctx, [layer], gate, up, low)
        return out.view(*gate.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (layer,), (gate, up, low) = _saved(ctx)
        needs = ctx.needs_input_grad[2:]
        silu = functional.silu(gate)
        product = (silu * up).view(-1, up.shape[-1]) if needs[0] or needs[2] else None
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        inner, own = _gradients(grad, product, low, layer, needs, None, ctx.needs_input_grad[0])
        if inner is None:
            return None, None, *own
        inner = inner.view(gate.shape)
        up_grad = silu.mul_(inner)
        return torch.ops.aten.silu_backward(inner.mul_(up), gate), up_grad, *own


def _product(rows: Tensor, layer: Linear) -> tuple[Tensor, Tensor | None]:
    """Return the layer's output and, with factors, what A makes of the input, [rows, rank]."""
    out = functional.linear(rows, layer.weight, layer.bias)
    if layer.a is None or layer.b is None:
        return out, None
    low = rows @ layer.a.T
    return out.addmm_(low, layer.b.T, alpha=layer.scale), low


def _gradients(
    grad: Tensor,
    rows: Tensor | None,
    low: Tensor | None,
    layer: Linear,
    needs: Sequence[bool],
    so_far: Tensor | None,
    need_input: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the input's gradient, `so_far` included, and those of the layer's own parts.

    `rows`, the input, may be None where neither the weight nor A is trained.
    """
    weight = bias = a = b = None
    if needs[0] and rows is not None:
        weight = grad.T @ rows
    if needs[1]:
        bias = grad.sum(0)
    inner = None
    if layer.a is not None and layer.b is not None:
        inner = (grad @ layer.b).mul_(layer.scale)
        if needs[2] and rows is not None:
            a = inner.T @ rows
        if needs[3] and low is not None:
            b = (grad.T @ low).mul_(layer.scale)
    if need_input:
        so_far = grad @ layer.weight if so_far is None else so_far.addmm_(grad, layer.weight)
        if inner is not None and layer.a is not None:
            so_far.addmm_(inner, layer.a)
    return so_far, [weight, bias, a, b, None]


def _save(ctx: Any, layers: Sequence[Linear], *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*(part for layer in layers for part in layer[:-1]), *tensors)
    ctx.scales = [layer.scale for layer in layers]


def _saved(ctx: Any) -> tuple[list[Linear], Sequence[Tensor]]:
    saved, each = ctx.saved_tensors, _PARTS - 1
    layers = [Linear(*saved[at * each :][:each], scale) for at, scale in enumerate(ctx.scales)]  # pyright: ignore
    return layers, saved[len(layers) * each :]
