"""Parameter names: PEFT's to Hugging Face's. No torch.

base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight    a factor of
model.layers.0.self_attn.q_proj.weight
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from headway.core.errors import HeadwayError

PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<factor>[AB])(?:\.default)?\.weight")


class LoraName(NamedTuple):
    """What the name of a LoRA tensor says."""

    parameter: str  # Hugging Face name of the full weight that it changes
    factor: Literal["A", "B"]


def parse_lora(name: str) -> LoraName:
    """Return the parameter and the factor that a PEFT tensor name means.

    Raises HeadwayError for any other kind of adapter tensor.
    """
    match = _FACTOR.fullmatch(name)
    if match is None:
        raise HeadwayError(
            "an adapter tensor must be a lora_A or lora_B weight of a linear layer", value=name
        )
    return LoraName(f"{match['module']}.weight", "A" if match["factor"] == "A" else "B")


def lora_name(parameter: str, factor: Literal["A", "B"]) -> str:
    """Return the name that PEFT saves a factor of a Hugging Face parameter under."""
    return f"{PREFIX}{parameter.removesuffix('.weight')}.lora_{factor}.weight"
