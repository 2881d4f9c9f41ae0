"""The Llama family, as `config.json` describes it: shape, and the name and shape of each tensor. No torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import ModelError

ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What `config.json` says of a Llama model's shape.

    Attributes:
        num_layers: decoder blocks.
        hidden: width of the residual stream.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: width of one head.
        intermediate: width of the gated feed-forward layer.
        vocab: rows of the embedding.
        max_context_tokens: positions that the model was made for.
        tied: the output layer is the embedding.
        attention_bias: q, k, v and o projections have biases.
        mlp_bias: gate, up and down projections have biases.
    """

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context_tokens: int
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every stored tensor by its Hugging Face name; a tied output layer is absent."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        linears = {
            "self_attn.q_proj": (queries, self.hidden, self.attention_bias),
            "self_attn.k_proj": (keys, self.hidden, self.attention_bias),
            "self_attn.v_proj": (keys, self.hidden, self.attention_bias),
            "self_attn.o_proj": (self.hidden, queries, self.attention_bias),
            "mlp.gate_proj": (self.intermediate, self.hidden, self.mlp_bias),
            "mlp.up_proj": (self.intermediate, self.hidden, self.mlp_bias),
            "mlp.down_proj": (self.hidden, self.intermediate, self.mlp_bias),
        }
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{norm}.weight"] = (self.hidden,)
            for name, (rows, columns, bias) in linears.items():
                shapes[f"{prefix}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
        return shapes

    @property
    def num_params(self) -> int:
        """Parameters, a tied embedding counted once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())


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
    return config


def read_shape(path: Path) -> LlamaShape:
    """Read the shape from `config.json`; ModelError for another architecture or a missing field."""
    config = read_config(path)
    architectures = config.get("architectures") or [config.get("model_type")]
    if architectures != [ARCHITECTURE]:
        rule = f"The architecture must be {ARCHITECTURE}, the only family supported so far"
        raise ModelError(
            rule,
            value=architectures[0] if len(architectures) == 1 else architectures,
            remedy="Use a Llama-family model, such as smollm2 (SmolLM2-135M-Instruct)",
        )
    try:
        num_heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return LlamaShape(
            num_layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            head_dim=int(config.get("head_dim") or hidden // num_heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            max_context_tokens=int(config.get("max_position_embeddings") or 2048),
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )
    except KeyError as error:
        rule = f"config.json must give {error.args[0]}"
        raise ModelError(rule, value=str(path / "config.json"), remedy="Fetch the model again") from error
