"""LoRA adapters as the decoder multiplies by them, and the rows of a pass that they are for.

    y = x W + (x A^T) (scaling * B)^T

added to the rows of an adapter after the multiplication by the weights that all rows share. The rows of one
adapter are neighbours in a pass: two small products for each fused matrix and adapter, and nothing is
gathered or masked. In a decode step, whose rows come in the order of their slots, everything but attention is
computed in that other order.

What the fused matrices q|k|v and gate|up have in common, they share: one A with the parts' rows one below the
other, and one block-diagonal B. That takes up to half as much memory again as the factors, and half the
products.

Invariant: an AdapterWeights never changes after it was made, and aliases no tensor of an Adapter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch

from headway.generator.rotary import in_pairs

if TYPE_CHECKING:
    from headway.models.adapters import Adapter
    from headway.models.shape import ModelShape

# The parts of each fused matrix, in the order of their rows.
_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_ROTATED = ("q_proj", "k_proj")


class Pair(NamedTuple):
    """What an adapter adds to the product with one matrix: (x a) b. R is the sum of its parts' ranks."""

    a: torch.Tensor  # [in, R]
    b: torch.Tensor  # [R, out], scaled


class AdapterWeights(NamedTuple):
    """An adapter, packed."""

    layers: tuple[dict[str, Pair], ...]  # by matrix of LayerWeights; a matrix that is not adapted is absent

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(part.nbytes for layer in self.layers for pair in layer.values() for part in pair)


def pack_adapter(adapter: Adapter, shape: ModelShape, device: torch.device) -> AdapterWeights:
    """Pack an adapter that was read for this shape."""
    outputs = {name: size[0] for name, size in shape.tensor_shapes().items()}
    layers: list[dict[str, Pair]] = []
    for index in range(shape.num_layers):
        pairs: dict[str, Pair] = {}
        for matrix, parts in _PARTS.items():
            modules = [f"model.layers.{index}.{part}" for part in parts]
            present = [module for module in modules if module in adapter.factors]
            if present:
                ends = {module: outputs[f"{module}.weight"] for module in modules}
                pairs[matrix] = _fused(adapter, present, ends, shape.head_dim, device)
        layers.append(pairs)
    return AdapterWeights(tuple(layers))


def _fused(
    adapter: Adapter, present: Sequence[str], outputs: dict[str, int], head_dim: int, device: torch.device
) -> Pair:
    """Return the factors of a fused matrix of which some parts are adapted."""
    a = torch.cat([adapter.factors[module].a for module in present])  # copies, also a single part
    b = a.new_zeros(len(a), sum(outputs.values()))
    row = column = 0
    for module, width in outputs.items():
        if module in present:
            factors = adapter.factors[module]
            part = in_pairs(factors.b, head_dim) if module.endswith(_ROTATED) else factors.b
            rank = len(factors.a)
            b[row : row + rank, column : column + width] = (part * factors.scaling).t()
            row += rank
        column += width
    return Pair(a.to(device).t(), b.to(device))


class Mixture:
    """Runs of neighbouring rows of a pass, each of one adapter or of none."""

    def __init__(self, runs: Iterable[tuple[AdapterWeights | None, int]]) -> None:
        adapters, sizes = zip(*runs, strict=True)
        self._adapters: tuple[AdapterWeights | None, ...] = adapters
        self._sizes: list[int] = list(sizes)

    def add(self, y: torch.Tensor, x: torch.Tensor, layer: int, matrix: str) -> None:
        """Add to y, the product of x with a matrix, what each row's adapter adds, in place."""
        parts = zip(self._adapters, x.split(self._sizes), y.split(self._sizes), strict=True)
        for adapter, rows, results in parts:
            if adapter is not None and (pair := adapter.layers[layer].get(matrix)) is not None:
                results.addmm_(torch.mm(rows, pair.a), pair.b)


def together(
    adapters: Sequence[AdapterWeights | None], sizes: Sequence[int]
) -> tuple[Sequence[int], Mixture] | None:
    """Order items so that those of one adapter are neighbours.

    Args:
        adapters: of each item.
        sizes: how many rows each item has.

    Returns:
        The items' numbers in their new order, and the runs of rows in it; None when no item has an adapter.
    """
    if all(adapter is None for adapter in adapters):
        return None
    numbers = {id(adapter): number for number, adapter in enumerate(adapters)}
    order = sorted(range(len(adapters)), key=lambda item: numbers[id(adapters[item])])
    runs = [
        (adapters[items[0]], sum(sizes[item] for item in items))
        for _, group in groupby(order, key=lambda item: numbers[id(adapters[item])])
        for items in (list(group),)
    ]
    return order, Mixture(runs)
