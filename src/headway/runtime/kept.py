"""Which checkpoint had the best evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.trainer.checkpoints import MANIFEST, checkpoint_path

if TYPE_CHECKING:
    from pathlib import Path

    from headway.telemetry.metrics import RunMetrics


def best_checkpoint(metrics: RunMetrics, directory: Path) -> tuple[int, ...]:
    """Return the step of the checkpoint that is there and whose evaluation has the highest mean reward.

    Of equals the newest; empty without any. Evaluations of steps that were lost do not count.
    """
    points = [
        (point.reward, point.step)
        for point in metrics.steps.evals
        if point.reward is not None and (checkpoint_path(directory, point.step) / MANIFEST).is_file()
    ]
    return (max(points)[1],) if points else ()
