"""Names of experts: two 3-D parameters a layer in transformers, one by one in checkpoint files. No torch.

model.layers.0.mlp.experts.gate_up_proj          [experts, 2 * width, hidden] is
model.layers.0.mlp.experts.{i}.gate_proj.weight  [width, hidden] and
model.layers.0.mlp.experts.{i}.up_proj.weight    [width, hidden];
model.layers.0.mlp.experts.down_proj             [experts, hidden, width] is
model.layers.0.mlp.experts.{i}.down_proj.weight  [hidden, width].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

_GATE_UP = ".mlp.experts.gate_up_proj"
_DOWN = ".mlp.experts.down_proj"


def unfused(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters under the names of checkpoint files, each expert's as views of the fused ones."""
    for name, tensor in named:
        if name.endswith(_GATE_UP):
            prefix = name.removesuffix("gate_up_proj")
            for expert, pair in enumerate(tensor):
                gate, up = pair.chunk(2)
                yield f"{prefix}{expert}.gate_proj.weight", gate
                yield f"{prefix}{expert}.up_proj.weight", up
        elif name.endswith(_DOWN):
            prefix = name.removesuffix("down_proj")
            for expert, down in enumerate(tensor):
                yield f"{prefix}{expert}.down_proj.weight", down
        else:
            yield name, tensor
