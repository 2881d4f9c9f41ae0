"""Settings of the model that is trained."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model is trained. Weights and arithmetic are float32."""

    path: str = setting(
        MISSING,
        "The model to train: a directory with a Hugging Face checkpoint (relative to the config file, or to "
        "the current directory where it is not there), a name on the Hugging Face Hub, or "
        '"smollm2" or "tiny", which headway model fetch brings.',
        pattern=".+",
        form="of at least one character",
    )
