"""Rotary positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from headway.models.shape import ModelShape


def rotations(shape: ModelShape, num_positions: int) -> torch.Tensor:
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


def in_pairs(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder a projection's rows, head by head, so that the two halves of a rotary pair are neighbours."""
    pairs = torch.arange(head_dim).view(2, head_dim // 2).t().reshape(-1)
    return rows.unflatten(0, (-1, head_dim))[:, pairs].flatten(0, 1)
