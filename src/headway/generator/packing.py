"""The decoder's weights: Hugging Face tensors fused, reordered and packed for small batches.

- q, k and v become one matrix, and so do gate and up: fewer, larger multiplications. So do their biases.
- The rows of q and k are reordered so that the two halves of a rotary pair are neighbours and one complex
  multiplication rotates them. Scores q.k do not change, for both sides move alike.

What comes out is a PackedWeights (`packed`), which an update shares with its base where it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from headway.core.errors import ModelError
from headway.generator.packed import LayerWeights, PackedWeights, packed, plain
from headway.generator.rotary import in_pairs
from headway.models.experts import unfused

if TYPE_CHECKING:
    from headway.models.shape import ModelShape

# Where each parameter of a layer goes: matrix and part. The experts' come from `_places`.
_PARTS: dict[str, tuple[str, int]] = {
    "self_attn.q_proj.weight": ("qkv", 0),
    "self_attn.k_proj.weight": ("qkv", 1),
    "self_attn.v_proj.weight": ("qkv", 2),
    "self_attn.q_proj.bias": ("qkv_bias", 0),
    "self_attn.k_proj.bias": ("qkv_bias", 1),
    "self_attn.v_proj.bias": ("qkv_bias", 2),
    "self_attn.q_norm.weight": ("norm_heads", 0),
    "self_attn.k_norm.weight": ("norm_heads", 1),
    "self_attn.o_proj.weight": ("out", 0),
    "self_attn.o_proj.bias": ("out_bias", 0),
    "mlp.gate_proj.weight": ("gate_up", 0),
    "mlp.up_proj.weight": ("gate_up", 1),
    "mlp.down_proj.weight": ("down", 0),
    "mlp.gate_proj.bias": ("gate_up_bias", 0),
    "mlp.up_proj.bias": ("gate_up_bias", 1),
    "mlp.down_proj.bias": ("down_bias", 0),
    "mlp.gate.weight": ("router", 0),
    "input_layernorm.weight": ("norm_attention", 0),
    "post_attention_layernorm.weight": ("norm_mlp", 0),
}
_EXPERT_PREFIX = "mlp.experts."
_TOP = {"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"}
_MULTIPLIED = ("qkv", "out", "gate_up", "down", "head")  # packed, but for experts
_Key = tuple[int, str]  # layer, -1 for none, and matrix


def pack_weights(shape: ModelShape, named: Iterable[tuple[str, torch.Tensor]]) -> PackedWeights:
    """Pack a full set of parameters, named as transformers names them.

    Raises ModelError when a parameter is missing, unknown, or of a wrong shape.
    """
    return _Packer(shape, None).pack(named)


def update_weights(
    shape: ModelShape, base: PackedWeights, named: Iterable[tuple[str, torch.Tensor]]
) -> PackedWeights:
    """Return weights in which the named parameters, each given in full, replace those of `base`.

    Raises ModelError when a parameter is unknown or of a wrong shape; `base` is never touched.
    """
    return _Packer(shape, base).pack(named)


class _Place(NamedTuple):
    """Where a parameter goes."""

    key: _Key
    part: int
    shape: tuple[int, ...]  # of the parameter


def _places(shape: ModelShape) -> dict[str, _Place]:
    """Return the place of every parameter by its name."""
    found: dict[str, _Place] = {}
    for name, size in shape.tensor_shapes().items():
        if name in _TOP:
            found[name] = _Place((-1, _TOP[name]), 0, size)
            continue
        _, _, index, rest = name.split(".", 3)
        matrix, part = _expert_part(rest) if rest.startswith(_EXPERT_PREFIX) else _PARTS[rest]
        found[name] = _Place((int(index), matrix), part, size)
    return found


def _expert_part(rest: str) -> tuple[str, int]:
    """Return matrix and part of mlp.experts.{i}.*_proj.weight: gate and up of one expert are neighbours."""
    expert, name, _ = rest.removeprefix(_EXPERT_PREFIX).split(".")
    if name == "down_proj":
        return "down", int(expert)
    return "gate_up", 2 * int(expert) + (name == "up_proj")


class _Packer:
    """Collects the parts of each matrix as they arrive and packs a matrix once it is whole."""

    def __init__(self, shape: ModelShape, base: PackedWeights | None) -> None:
        self._shape = shape
        self._base = base
        self._places = _places(shape)
        self._names: dict[_Key, list[str]] = {}  # the parts in order
        for name, place in sorted(self._places.items(), key=lambda item: item[1].part):
            self._names.setdefault(place.key, []).append(name)
        self._parts: dict[_Key, dict[int, torch.Tensor]] = {}
        self._done: dict[_Key, torch.Tensor] = {}

    @torch.inference_mode()
    def pack(self, named: Iterable[tuple[str, torch.Tensor]]) -> PackedWeights:
        for name, tensor in unfused(named):
            self._add(name, tensor)
        for key in list(self._parts):
            self._complete(key)
        return self._assemble()

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and self._shape.tied):
            return  # not a parameter; and a tied output layer follows the embedding
        place = self._places.get(name)
        if place is None:
            raise ModelError(
                "a parameter is not one of the decoder's", value=name, remedy="Merge adapters first."
            )
        if tuple(tensor.shape) != place.shape:
            raise ModelError(
                f"{name} must have shape {place.shape}",
                value=tuple(tensor.shape),
                remedy="The weights are of another model than config.json: fetch or save the model again",
            )
        parts = self._parts.setdefault(place.key, {})
        parts[place.part] = self._arranged(place, tensor.detach().to(torch.float32))
        if len(parts) == len(self._names[place.key]):
            self._complete(place.key)

    def _arranged(self, place: _Place, tensor: torch.Tensor) -> torch.Tensor:
        """Bring what is rotated, and the norms before that, into rotary pairs; norms get a row a head."""
        matrix, part = place.key[1], place.part
        if matrix == "norm_heads":
            num_heads = self._shape.num_kv_heads if part else self._shape.num_heads
            return in_pairs(tensor, self._shape.head_dim).expand(num_heads, -1)
        if matrix in ("qkv", "qkv_bias") and part < 2:
            return in_pairs(tensor, self._shape.head_dim)
        return tensor

    def _complete(self, key: _Key) -> None:
        """Pack one matrix; parts that did not come are taken from the base."""
        parts, names = self._parts.pop(key), self._names[key]
        if len(parts) < len(names):
            if self._base is None:
                self._lacks(next(name for part, name in enumerate(names) if part not in parts))
            old = self._split(key)
            parts = {part: parts.get(part, old[part]) for part in range(len(names))}
        whole = torch.cat([parts[part] for part in range(len(names))])  # copies, also a single part
        layer, matrix = key
        if matrix in ("gate_up", "down") and self._has_experts(layer):
            assert self._shape.experts is not None
            self._done[key] = whole.unflatten(0, (self._shape.experts.num, -1))
        else:
            self._done[key] = packed(whole) if matrix in _MULTIPLIED else whole

    def _split(self, key: _Key) -> Sequence[torch.Tensor]:
        """Return the parts of the base's matrix."""
        layer, matrix = key
        old = plain(_matrix(self._base, key))
        if matrix == "norm_heads":
            return old.split((self._shape.num_heads, self._shape.num_kv_heads))
        if matrix in ("gate_up", "down") and self._has_experts(layer):
            old = old.flatten(0, 1)
        return old.split([self._places[name].shape[0] for name in self._names[key]])

    def _has_experts(self, layer: int) -> bool:
        return (layer, "router") in self._names

    def _assemble(self) -> PackedWeights:
        matrices: list[dict[str, torch.Tensor]] = [{} for _ in range(self._shape.num_layers)]
        for layer, matrix in self._names:
            if layer >= 0:
                matrices[layer][matrix] = self._get((layer, matrix))
        embed = self._get((-1, "embed"))
        if self._shape.tied:
            fresh = (-1, "embed") in self._done
            head = packed(embed) if fresh or self._base is None else self._base.head
        else:
            head = self._get((-1, "head"))
        layers = tuple(LayerWeights(**each) for each in matrices)
        return PackedWeights(embed, layers, self._get((-1, "norm")), head)

    def _get(self, key: _Key) -> torch.Tensor:
        if key in self._done:
            return self._done[key]
        if self._base is None:
            self._lacks(self._names[key][0])
        return _matrix(self._base, key)

    def _lacks(self, name: str) -> NoReturn:
        raise ModelError(
            "the checkpoint lacks a parameter", value=name, remedy="Fetch or save the model again"
        )


def _matrix(weights: PackedWeights | None, key: _Key) -> Any:
    assert weights is not None
    layer, name = key
    return getattr(weights if layer < 0 else weights.layers[layer], name)
