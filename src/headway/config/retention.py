"""Settings of what a run keeps on disk beside its newest checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Which rollouts' tokens and transcripts stay on disk.

    What a resume may still need stays in any case. Files go when a checkpoint is done.
    """

    payloads: int | Literal["all", "none"] = setting(
        "all",
        'Payloads of train rollouts: "all" keeps them, a number keeps those of so many newest steps, "none" '
        "none. They are what `headway rollouts` shows; nothing else needs them once a checkpoint has them.",
        ge=1,
    )
    sample_groups: int = setting(
        16,
        "One group in so many keeps its payloads whatever `payloads` says, to look at later; 0 for none. "
        "From a change on it holds for new groups.",
        ge=0,
    )
    evaluations: bool = setting(True, "Whether evaluations keep their payloads whatever `payloads` says.")
