"""Draws settings of pruning, concurrency, guard and evaluation, and the verdicts and numbers they act on."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import replace

from headway.core.events import Event, StepEnded, TurnEnded, VerdictGiven
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun
from headway.queue.band import ConcurrencySettings
from headway.queue.pruning_settings import PruningSettings
from headway.queue.settings import SchedulerSettings
from headway.queue.watch import GuardSettings
from tests.simulation.scripted import ScriptedDriver

SOURCES = ("length", "repetition", "environment", "value", "user")


def draw_flow(
    settings: SchedulerSettings, sim: SimSettings, rng: random.Random
) -> tuple[SchedulerSettings, SimSettings]:
    """Return the same settings with these rules drawn at random."""
    settings = replace(
        settings,
        pruning=PruningSettings(
            max_tokens=rng.choice([0, 0, 60, 150]),
            max_repetition=rng.choice([None, 0.5]),
            environment=rng.random() < 0.5,
            value_threshold=rng.choice([None, 0.3]),
            min_turns=rng.randint(0, 2),
            dead_groups=rng.random() < 0.5,
            audit=rng.choice([0.0, 0.3]),
        ),
        concurrency=ConcurrencySettings(
            mode=rng.choice(["fixed", "adaptive", "adaptive"]),
            initial=rng.choice([0, 4, 40]),
            trim=rng.choice(["youngest", "longest"]),
        ),
        guard=GuardSettings(
            action=rng.choice(["off", "warn", "pause", "rollback", "stop"]),
            window=rng.choice([1, 2]),
            max_grad_norm=2.0,
            max_pause_s=rng.choice([5.0, 50.0]),
            max_rollbacks=rng.randint(0, 2),
        ),
        eval=replace(
            settings.eval,
            rollouts_per_task=rng.choice([1, 3]),
            temperature=1.0,
            max_share=rng.choice([0.1, 0.5, 1.0]),
        ),
        max_sandbox_starts_per_s=rng.choice([0.0, 3.0]),
    )
    sim = replace(
        sim,
        kv_tokens=rng.choice([0, 300, 2000]),
        prefill_token_s=rng.choice([0.0, 0.002]),
        sample_s=rng.choice([0.5, 3.0]),
    )
    return settings, sim


class FlowDriver(ScriptedDriver):
    """Lets verdicts follow answers, and a step's gradient norm be out of line now and then."""

    def __init__(
        self, run: SimRun, sim: SimSettings, seed: int, *, lineage: int = 0, start_s: float = 0.0
    ) -> None:
        super().__init__(run, sim, seed, lineage=lineage, start_s=start_s)
        self.change, self.follow = self._change, self._follow
        self._script = random.Random(f"flow/{seed}")

    def _change(self, event: Event) -> Event:
        if isinstance(event, StepEnded) and "grad_norm" not in event.metrics:
            value = 10.0 if self._script.random() < 0.2 else 0.5
            return replace(event, metrics={"grad_norm": value, "entropy": 1.0})
        return event

    def _follow(self, event: Event) -> Iterable[Event]:
        if not isinstance(event, TurnEnded):
            return
        draw = hashlib.sha256(f"{event.rollout}/{event.turn}".encode()).digest()
        if draw[0] < 80:
            source = SOURCES[draw[1] % len(SOURCES)]
            value = {"length": 100.0, "environment": -1.0, "user": -1.0}.get(source, draw[2] / 255)
            yield VerdictGiven(event.rollout, event.attempt, source, value, "drawn")  # pyright: ignore
