"""LoRA factors merged into base weights: the one place that says how.

    weight = base + scaling * B @ A

The sum is taken in float32 or wider, then rounded to the base's type. Whatever Headway merges, a generator's
weights or an exported model's, is equal to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.core.errors import HeadwayError
from headway.weights.names import lora_name, parse_lora

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor


def merged(
    base: Mapping[str, Tensor],
    names: Collection[str],
    factor: Callable[[str], Tensor],
    scaling: float,
    path: Path,
) -> Iterator[tuple[str, Tensor]]:
    """Yield (Hugging Face name, tensor) of every weight that an adapter changes.

    Args:
        base: full weights by Hugging Face name; they are not changed.
        names: PEFT names of the adapter's tensors.
        factor: returns one of them, A [rank, in] or B [out, rank].
        scaling: alpha / rank.
        path: where the adapter is, for messages.

    Raises HeadwayError when a factor is missing or does not fit the base.
    """
    known = set(names)
    for parameter in sorted({parse_lora(name).parameter for name in known}):
        if missing := {lora_name(parameter, "A"), lora_name(parameter, "B")} - known:
            raise HeadwayError(f"published weights {path} must hold both factors", value=missing.pop())
        a, b = factor(lora_name(parameter, "A")), factor(lora_name(parameter, "B"))
        weight = fitting(base, parameter, (b.shape[0], a.shape[1]), path)
        wide = torch.promote_types(torch.promote_types(a.dtype, weight.dtype), torch.float32)
        total = torch.addmm(weight.to(wide), b.to(wide), a.to(wide), alpha=scaling)
        yield parameter, total.to(weight.dtype)


def fitting(base: Mapping[str, Tensor], name: str, shape: tuple[int, ...], path: Path) -> Tensor:
    """Return the base's tensor of a name; HeadwayError when there is none, or one of another shape."""
    weight = base.get(name)
    if weight is None or tuple(weight.shape) != shape:
        found = None if weight is None else tuple(weight.shape)
        rule = f"published weights {path} must fit the base model: {name} has shape {shape} there"
        raise HeadwayError(rule, value=found, remedy="Generator and trainer must load one checkpoint")
    return weight
