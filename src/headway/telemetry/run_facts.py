"""What the metrics need of a journal's header, read once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from headway.core.facts import ModelFacts
from headway.telemetry.settings import SOLVED_REWARD

if TYPE_CHECKING:
    from headway.telemetry.header import JournalHeader


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The few settings that metrics, progress lines and reports look at."""

    bound: int | None = None  # staleness bound in steps
    solved_reward: float = SOLVED_REWARD  # a rollout is solved from this reward on
    band: tuple[float, float] | None = None  # of solve rates that the curriculum aims at
    stop_steps: int | None = None  # optimizer steps after which the run ends, None for no limit
    stop_wall_s: float | None = None
    learning_rate: float | None = None  # of the config, before any rollback
    rollback_lr_scale: float = 1.0
    max_rollbacks: int | None = None
    usd_per_hour: float | None = None
    peak_flops_per_s: float | None = None  # of the trainer's accelerators together
    model: ModelFacts | None = None
    lora_params: int | None = None
    only_evaluates: bool = False  # nothing is trained
    simulated: bool = False  # times are virtual, and no model ran
    num_replicas: int = 1
    num_environment_workers: int = 1

    @property
    def num_processes(self) -> int:
        """Workers that a life of the run begins with."""
        trainers = 0 if self.only_evaluates else 1
        return trainers + self.num_replicas + self.num_environment_workers

    @property
    def mode(self) -> str | None:
        """Return `sync` for bound 0, `one-step-off` for 1, `async` above, None when the bound is unknown."""
        if self.bound is None:
            return None
        return {0: "sync", 1: "one-step-off"}.get(self.bound, "async")

    def changed(self, key: str, value: Any) -> RunFacts:
        """Return the facts after a setting changed; those of most settings are no facts."""
        match key:
            case "queue.bound":
                return replace(self, bound=value)
            case "stop.steps":
                return replace(self, stop_steps=value or None)
            case "stop.wall_s":
                return replace(self, stop_wall_s=value or None)
            case "trainer.learning_rate":
                return replace(self, learning_rate=value)
            case "environment.workers":
                return replace(self, num_environment_workers=value)
            case "guard.rollback_lr_scale":
                return replace(self, rollback_lr_scale=value)
            case "guard.max_rollbacks":
                return replace(self, max_rollbacks=value)
            case _:
                return self

    def train_flops(self, num_tokens: int, sequence_tokens: float) -> float | None:
        """FLOPs of training on `num_tokens` tokens at this mean length; None when the model is unknown."""
        if self.model is None:
            return None
        if self.lora_params is None:
            return self.model.train_flops(num_tokens, sequence_tokens)
        return self.model.lora_train_flops(num_tokens, sequence_tokens, self.lora_params)


def facts_of(header: JournalHeader) -> RunFacts:
    """Read the facts.

    They are `queue.bound`, `[stop]` and how the guard rolls back of the scheduler's settings;
    `telemetry.solved_reward`, `trainer.learning_rate` and the numbers of workers of the config; and the
    header's own fields.
    """
    stop = _section(header.queue, "stop")
    solved = _section(header.config, "telemetry").get("solved_reward", SOLVED_REWARD)
    only = bool(_section(header.queue, "eval").get("only"))
    curriculum, guard = _section(header.queue, "curriculum"), _section(header.queue, "guard")
    return RunFacts(
        bound=_section(header.queue, "queue").get("bound"),
        solved_reward=solved,
        band=(curriculum["band_low"], curriculum["band_high"]) if curriculum.get("levels") else None,
        stop_steps=None if only else stop.get("steps") or None,
        stop_wall_s=None if only else stop.get("wall_s") or None,
        learning_rate=_section(header.config, "trainer").get("learning_rate"),
        rollback_lr_scale=guard.get("rollback_lr_scale", 1.0),
        max_rollbacks=guard.get("max_rollbacks"),
        usd_per_hour=header.prices.get("usd_per_hour"),
        peak_flops_per_s=header.peak_flops_per_s,
        model=header.model,
        lora_params=header.lora_params,
        only_evaluates=only,
        simulated=header.simulated,
        num_replicas=_section(header.config, "generator").get("replicas", 1),
        num_environment_workers=_section(header.config, "environment").get("workers", 1),
    )


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}
