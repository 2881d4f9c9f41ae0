"""Settings of the model that is trained."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Literal

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model is trained, and in which number format."""

    path: str = setting(
        MISSING,
        "The model to train: a directory with a Hugging Face checkpoint, a name on the Hugging Face Hub, or "
        '"smollm2" or "tiny", which headway model fetch brings.',
        pattern=".+",
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        "Number format of the weights and of the arithmetic. CPUs without bfloat16 units emulate it: slower.",
    )
