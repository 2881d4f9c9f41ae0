"""What `fused` computes with: norms, rotary, linear layers with LoRA factors, as autograd functions.

Each keeps for the backward pass what the table in `fused` says, and computes gradients of what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Linear(NamedTuple):
    """What a linear layer multiplies by: x W' + b + scale (x A') B'."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    a: Tensor | None  # [rank, in]
    b: Tensor | None  # [out, rank]
    scale: float


_PARTS = len(Linear._fields)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x [..., d] over its root mean square, times weight [d]."""
    return _Norm.apply(x, weight, eps)  # pyright: ignore


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [1, s, heads, d] turned by angles of cosines and sines [1, s, 1, d / 2]; halves are pairs."""
    return _Rotary.apply(x, cos, sin)  # pyright: ignore


def linears(x: Tensor, layers: Iterable[Linear]) -> tuple[Tensor, ...]:
    """Return the output of each layer for one input, x [..., in]."""
    return _Linears.apply(x, *(part for layer in layers for part in layer))  # pyright: ignore


def gated_linear(gate: Tensor, up: Tensor, layer: Linear) -> Tensor:
    """Return the layer's output for silu(gate) * up, both [..., in]."""
    return _GatedLinear.apply(gate, up, *layer)  # pyright: ignore


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
