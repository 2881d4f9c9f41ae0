"""The model families: what sets each one's decoder apart. No torch.

Every family is a pre-norm decoder with grouped-query attention, rotary positions and gated feed-forward
layers; a Family says what it adds to that. `shape` reads a checkpoint's numbers by it, the generator computes
from that shape alone, and the trainer uses the class in transformers that the architecture names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headway.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

Bias = Literal["never", "always", "configured"]  # configured: as attention_bias or mlp_bias in config.json


@dataclass(frozen=True, slots=True)
class Family:
    """One family."""

    architecture: str  # the class in transformers, as config.json names it
    model_type: str  # as config.json names it
    qkv_bias: Bias
    out_bias: Bias
    mlp_bias: Bias = "never"
    head_norms: bool = False  # each query and key head is normalised before its rotation
    experts: bool = False  # feed-forward layers may be mixtures of experts
    head_dim: int | None = None  # where config.json gives none; None: hidden / heads


LLAMA = Family(
    "LlamaForCausalLM", "llama", qkv_bias="configured", out_bias="configured", mlp_bias="configured"
)
QWEN2 = Family("Qwen2ForCausalLM", "qwen2", qkv_bias="always", out_bias="never")
QWEN3 = Family(
    "Qwen3ForCausalLM",
    "qwen3",
    qkv_bias="configured",
    out_bias="configured",
    head_norms=True,
    head_dim=128,
)
QWEN3_MOE = Family(
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    qkv_bias="configured",
    out_bias="configured",
    head_norms=True,
    experts=True,
)
FAMILIES = (LLAMA, QWEN2, QWEN3, QWEN3_MOE)


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json; ModelError, with the list, for one that is not supported."""
    named = config.get("architectures") or []
    kind = config.get("model_type")
    for family in FAMILIES:
        if named == [family.architecture] and kind not in (None, family.model_type):
            # transformers would go by model_type, and fill what that family has and this file lacks.
            raise ModelError(
                f'With the architecture {family.architecture} the model_type must be "{family.model_type}"',
                value=kind,
                remedy="config.json was edited, or is of another model: fetch the model again",
            )
        if named == [family.architecture] or (not named and kind == family.model_type):
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    found = named or [kind or "config.json names no architecture"]
    raise ModelError(
        f"The architecture must be one of {known}",
        value=found[0] if len(found) == 1 else found,
        remedy="Use a model of the Llama, Qwen2, Qwen2.5, Qwen3 or Qwen3-MoE family, such as smollm2",
    )
