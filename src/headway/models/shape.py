"""The shape of a model, as `config.json` describes it: its numbers, and the name and shape of each tensor.

Whatever Headway does not compute is refused here, by name, before any weight is read. No torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headway.core.errors import ModelError
from headway.core.facts import ModelFacts
from headway.models.families import Bias, Family, family_of

ROPE_TYPES = ("default", "llama3")


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """Mixtures of experts in place of some layers' feed-forward part."""

    num: int  # experts of a layer
    per_token: int  # that each token is sent to
    intermediate: int  # width of one expert's gated feed-forward layer
    layers: tuple[int, ...]  # decoder blocks that have them, rising
    normalised: bool  # the chosen experts' weights are scaled to sum to 1


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What `config.json` says of a model, and its family adds."""

    num_layers: int  # decoder blocks
    hidden: int  # width of the residual stream
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int
    intermediate: int  # width of a gated feed-forward layer that is no mixture
    vocab: int  # rows of the embedding
    max_context_tokens: int  # positions that the model was made for
    norm_eps: float
    tied: bool  # the output layer is the embedding
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None  # None, or the parameters of the llama3 scaling
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False  # each query and key head is normalised before its rotation
    experts: ExpertsShape | None = None

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every stored tensor by its Hugging Face name; a tied output layer is absent."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        with_experts = set(self.experts.layers if self.experts else ())
        for layer in range(self.num_layers):
            parts = self._attention() | (self._experts() if layer in with_experts else self._mlp())
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
        return shapes

    def _attention(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (self.hidden,) for name in norms}
        if self.head_norms:
            shapes |= {f"self_attn.{name}.weight": (self.head_dim,) for name in ("q_norm", "k_norm")}
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            shapes |= _linear(f"self_attn.{name}", rows, self.hidden, bias=self.qkv_bias)
        return shapes | _linear("self_attn.o_proj", self.hidden, queries, bias=self.out_bias)

    def _mlp(self) -> dict[str, tuple[int, ...]]:
        return _gated("mlp", self.hidden, self.intermediate, bias=self.mlp_bias)

    def _experts(self) -> dict[str, tuple[int, ...]]:
        assert self.experts is not None
        shapes = _linear("mlp.gate", self.experts.num, self.hidden, bias=False)
        for expert in range(self.experts.num):
            shapes |= _gated(f"mlp.experts.{expert}", self.hidden, self.experts.intermediate, bias=False)
        return shapes

    @property
    def num_params(self) -> int:
        """Parameters, a tied embedding counted once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    def facts(self) -> ModelFacts:
        """Return what FLOPs and bytes are computed from."""
        experts = self.experts
        return ModelFacts(
            num_params=self.num_params,
            num_layers=self.num_layers,
            hidden=self.hidden,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate,
            vocab=self.vocab,
            max_context_tokens=self.max_context_tokens,
            num_expert_layers=len(experts.layers) if experts else 0,
            num_experts=experts.num if experts else 0,
            experts_per_token=experts.per_token if experts else 0,
            expert_intermediate=experts.intermediate if experts else 0,
        )


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return shapes | ({f"{name}.bias": (rows,)} if bias else {})


def _gated(name: str, hidden: int, intermediate: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
    return (
        _linear(f"{name}.gate_proj", intermediate, hidden, bias=bias)
        | _linear(f"{name}.up_proj", intermediate, hidden, bias=bias)
        | _linear(f"{name}.down_proj", hidden, intermediate, bias=bias)
    )


def read_config(path: Path) -> dict[str, Any]:
    """Read `config.json` of the checkpoint directory `path`; ModelError if it is missing or not JSON."""
    file = path / "config.json"
    if not file.is_file():
        rule = "A checkpoint directory must hold config.json"
        inner = path / "model"  # of a supervised run
        if (inner / "config.json").is_file():
            raise ModelError(rule, value=str(path), remedy=f"Did you mean {inner}?")
        raise ModelError(rule, value=str(path), remedy="Name a directory that save_pretrained wrote")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(
            "config.json must be valid JSON", value=f"{file}: {error}", remedy="Fetch the model again"
        ) from error
    if not isinstance(config, dict):
        raise ModelError(
            "config.json must hold a JSON object", value=type(config).__name__, remedy="Fetch the model again"
        )
    return cast("dict[str, Any]", config)


def read_shape(path: Path) -> ModelShape:
    """Read the shape from a checkpoint's `config.json`; ModelError as `model_shape` raises it."""
    return model_shape(read_config(path))


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape that a configuration describes: the contents of config.json, or its `to_dict()`.

    Raises ModelError for another family, for what Headway does not compute, and for a missing field.
    """
    family = family_of(config)
    _refuse_what_is_not_computed(config)
    _refuse_what_is_no_number(config)
    rope = _rope(config)
    try:
        num_heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        num_layers = int(config["num_hidden_layers"])
        return ModelShape(
            num_layers=num_layers,
            hidden=hidden,
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            head_dim=int(config.get("head_dim") or family.head_dim or hidden // num_heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            max_context_tokens=int(config.get("max_position_embeddings") or 2048),
            norm_eps=float(config.get("rms_norm_eps") or 1e-6),
            tied=bool(config.get("tie_word_embeddings", False)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope_scaling=rope if _rope_type(rope) == "llama3" else None,
            qkv_bias=_has_bias(family.qkv_bias, config.get("attention_bias")),
            out_bias=_has_bias(family.out_bias, config.get("attention_bias")),
            mlp_bias=_has_bias(family.mlp_bias, config.get("mlp_bias")),
            head_norms=family.head_norms,
            experts=_experts_shape(family, config, num_layers),
        )
    except KeyError as error:
        rule = f"config.json must give {error.args[0]}"
        raise ModelError(rule, remedy="Fetch the model again") from error


_COUNTS = (
    "num_attention_heads hidden_size num_hidden_layers num_key_value_heads head_dim intermediate_size "
    "vocab_size max_position_embeddings num_experts num_local_experts num_experts_per_tok "
    "moe_intermediate_size decoder_sparse_step"
)
_REALS = "rms_norm_eps rope_theta"


def _refuse_what_is_no_number(config: Mapping[str, Any]) -> None:
    """A field may be absent or null; what there is must be a number that a model can have."""
    for name in _COUNTS.split():
        value = config.get(name)
        whole = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value >= (0 if name in ("num_experts", "num_local_experts") else 1)
        )
        if value is not None and not whole:
            rule = f"{name} in config.json must be a whole number, at least 1"
            raise ModelError(rule, value=value, remedy="Fetch the model again")
    for name in _REALS.split():
        value = config.get(name)
        if value is not None and not (isinstance(value, int | float) and value > 0):
            rule = f"{name} in config.json must be a number above 0"
            raise ModelError(rule, value=value, remedy="Fetch the model again")
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        rule = f"num_attention_heads = {heads} in config.json must be a multiple of num_key_value_heads"
        raise ModelError(rule, value=kv_heads, remedy="Fetch the model again")
    experts = config.get("num_experts") or config.get("num_local_experts")
    chosen = config.get("num_experts_per_tok")
    if experts and chosen and chosen > experts:
        rule = f"num_experts_per_tok in config.json must be at most its {experts} experts"
        raise ModelError(rule, value=chosen, remedy="Fetch the model again")


def _has_bias(rule: Bias, configured: Any) -> bool:
    return rule == "always" or (rule == "configured" and bool(configured))


def _experts_shape(family: Family, config: Mapping[str, Any], num_layers: int) -> ExpertsShape | None:
    if not family.experts:
        return None
    # transformers writes num_experts and reads num_local_experts too.
    num = int(config["num_experts"] if "num_experts" in config else config["num_local_experts"])
    dense, step = set(config.get("mlp_only_layers") or ()), int(config.get("decoder_sparse_step") or 1)
    layers = tuple(
        layer for layer in range(num_layers) if num and layer not in dense and (layer + 1) % step == 0
    )
    if not layers:
        return None
    return ExpertsShape(
        num=num,
        per_token=int(config["num_experts_per_tok"]),
        intermediate=int(config["moe_intermediate_size"]),
        layers=layers,
        normalised=bool(config.get("norm_topk_prob", False)),
    )


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    # transformers 5 has one dictionary; before, theta and scaling were two fields.
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _rope_type(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _refuse_what_is_not_computed(config: Mapping[str, Any]) -> None:
    remedy = "Choose another model"
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError("The activation (hidden_act) must be silu", value=activation, remedy=remedy)
    kind = _rope_type(_rope(config))
    if kind not in ROPE_TYPES:
        raise ModelError(
            f"The rope type must be one of {', '.join(ROPE_TYPES)}",
            value=kind,
            remedy="Choose another model, or take the scaling out of config.json for short contexts",
        )
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds or (config.get("use_sliding_window") and config.get("sliding_window") is not None):
        raise ModelError(
            "Every layer must attend to the whole context: sliding windows are not computed",
            value=", ".join(sorted(kinds)) or f"sliding_window = {config.get('sliding_window')}",
            remedy="Choose another model, or set use_sliding_window to false in config.json for contexts "
            "that are shorter than the window",
        )
