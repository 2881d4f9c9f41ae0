"""What a machine allows a decoder: read bandwidth, and f32 matrix products of a model's own shapes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from headway.core.clock import stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.models.shape import ModelShape

_READ_BYTES = 1 << 29
_ROUNDS = 5


class Roofline(NamedTuple):
    """Measured limits.

    Attributes:
        read_bytes_per_s: of a sum over half a GiB.
        flops_per_s: of one pass of `rows` tokens through all matrices of the model, f32.
        gemm_tokens_per_s: decoded tokens a second, were there nothing but that pass.
        read_tokens_per_s: decoded tokens a second, were there nothing but reading all weights and the KV of
            the running requests once a step.
    """

    read_bytes_per_s: float
    flops_per_s: float
    gemm_tokens_per_s: float
    read_tokens_per_s: float

    @property
    def tokens_per_s(self) -> float:
        """The lower of the two bounds."""
        return min(self.gemm_tokens_per_s, self.read_tokens_per_s)


def measure(shape: ModelShape, threads: int, rows: int, context: float) -> Roofline:
    """Measure; `rows` requests decode at a mean context of `context` tokens."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            read = _READ_BYTES / _typical(_reader())
            step_s = _typical(_pass(shape, rows))
    finally:
        torch.set_num_threads(before)
    facts = shape.facts()
    step_bytes = 4 * facts.linear_params + rows * context * facts.kv_bytes_per_token()
    return Roofline(read, 2 * facts.linear_params * rows / step_s, rows / step_s, rows * read / step_bytes)


def _reader() -> Callable[[], object]:
    block = torch.ones(_READ_BYTES // 4)
    return lambda: block.sum()


def _pass(shape: ModelShape, rows: int) -> Callable[[], object]:
    """Return a pass through every matrix once, each its own memory, as in a decode step."""
    sizes = [size for size in shape.tensor_shapes().values() if len(size) == 2]
    if not shape.tied:  # the embedding is looked up, the output layer multiplies
        sizes.remove((shape.vocab, shape.hidden))
    weights = [torch.ones(size) for size in sizes]
    inputs = {columns: torch.ones(rows, columns) for _, columns in sizes}

    def run() -> None:
        for weight in weights:
            torch.mm(inputs[weight.shape[1]], weight.T)

    return run


def _typical(run: Callable[[], object]) -> float:
    """Return the median seconds of a few calls, after one that is not counted."""
    run()
    took: list[float] = []
    for _ in range(_ROUNDS):
        began = stopwatch()
        run()
        took.append(stopwatch() - began)
    return median(took)
