"""Mixtures of experts: which experts a token is sent to, and what they make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from headway.models.shape import ExpertsShape


class Route(NamedTuple):
    """Where n tokens go, k experts each."""

    experts: torch.Tensor  # int64 [n, k]
    weights: torch.Tensor  # f32 [n, k]


def route(x: torch.Tensor, router: torch.Tensor, shape: ExpertsShape) -> Route:
    """Choose the likeliest experts of softmax(x @ router.T), taken over all experts; x is [n, hidden]."""
    weights, experts = functional.linear(x, router).softmax(-1).topk(shape.per_token, dim=-1)
    if shape.normalised:
        weights /= weights.sum(-1, keepdim=True)
    return Route(experts, weights)


def mix(x: torch.Tensor, chosen: Route, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of the chosen experts' outputs, [n, hidden].

    Args:
        x: [n, hidden].
        chosen: the tokens' experts.
        gate_up: [experts, 2 * width, hidden].
        down: [experts, hidden, width].
    """
    flat = chosen.experts.flatten()
    order = flat.argsort(stable=True)  # the tokens of an expert become neighbours
    rows = order // chosen.experts.shape[1]
    sent = x[rows]
    results = torch.empty_like(sent)
    at = 0
    for expert, n in enumerate(flat.bincount(minlength=len(gate_up)).tolist()):
        if n:
            part = slice(at, at := at + n)
            gate, up = functional.linear(sent[part], gate_up[expert]).chunk(2, dim=-1)
            results[part] = functional.linear(functional.silu(gate) * up, down[expert])
    results *= chosen.weights.flatten()[order, None]
    return torch.zeros_like(x).index_add_(0, rows, results)
