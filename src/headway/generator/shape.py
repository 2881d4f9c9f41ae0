"""The shape of a Llama-family decoder, read from a Hugging Face configuration.

Whatever the decoder does not compute is refused here, by name, before any weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from headway.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What the forward pass needs to know beside the weights."""

    num_layers: int
    hidden: int  # width of the residual stream
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int
    intermediate: int  # width of the gated feed-forward layer
    vocab: int
    max_positions: int  # positions that the model was made for
    norm_eps: float
    tied: bool  # the output layer is the embedding
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None  # None, or the parameters of the llama3 scaling


def decoder_shape(config: Any) -> DecoderShape:
    """Read the shape from a transformers configuration.

    Raises ModelError for anything that the decoder does not compute.
    """
    family = getattr(config, "model_type", None)
    if family != "llama":
        raise ModelError(
            "the embedded engine decodes models of the llama family only",
            value=family,
            remedy="Use a Llama-architecture checkpoint.",
        )
    for name, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        value = getattr(config, name, wanted)
        if value != wanted:
            raise ModelError(
                f"the embedded engine needs {name} = {wanted!r}", value=value, remedy="Choose another model"
            )
    # transformers 5 has one dictionary; before, theta and scaling were two attributes.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ModelError(
            "the embedded engine knows the rope types default and llama3",
            value=kind,
            remedy="Choose another model",
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return DecoderShape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
        rope_scaling=dict(rope) if kind == "llama3" else None,
    )


def rotations(shape: DecoderShape, num_positions: int) -> torch.Tensor:
    """Return the rotary position factors exp(i * position * frequency), complex64 [positions, head_dim / 2].

    The llama3 scaling keeps short wavelengths, divides the frequency of long ones by `factor`, and
    interpolates between (Llama 3.1 model card; transformers' modeling_rope_utils has the same formula).
    """
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequency = 1.0 / (shape.rope_theta**half)
    if shape.rope_scaling is not None:
        factor = shape.rope_scaling["factor"]
        low, high = shape.rope_scaling["low_freq_factor"], shape.rope_scaling["high_freq_factor"]
        original = shape.rope_scaling["original_max_position_embeddings"]
        wavelength = 2 * math.pi / frequency
        smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
        frequency = (1 - smooth) * frequency / factor + smooth * frequency
    angles = torch.outer(torch.arange(num_positions).float(), frequency)
    return torch.polar(torch.ones_like(angles), angles)
