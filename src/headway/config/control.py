"""Settings of the controller that keeps production and consumption matched; see matching/control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headway.core.settings import Problem, setting

Lever = Literal["depth", "running", "groups_extra", "rollouts_extra", "batch_wait", "pruning"]
"""What it may turn: queue.depth, queue.max_running_rollouts, oversampling.groups_extra and rollouts_extra,
queue.batch_wait_s, pruning.max_tokens."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Section [control]: settings that follow the run, so that neither half waits as its behaviour drifts.

    It turns queue.depth (within queue.bound), queue.max_running_rollouts, oversampling.groups_extra and
    rollouts_extra, queue.batch_wait_s and pruning.max_tokens, from where the config has them. A key that
    `headway set` or `headway resume` changes is left alone from then on.
    """

    mode: Literal["off", "on"] = setting("off", "on turns settings while the run goes on; off never does.")
    levers: tuple[Lever, ...] = setting(
        ("depth", "running", "groups_extra", "rollouts_extra", "batch_wait"),
        "What it may turn. Oversampling throws the slowest away, which biases towards short rollouts; leave "
        "groups_extra and rollouts_extra out where that matters. pruning does too, and is left out unless "
        "you name it.",
    )
    wait_high: float = setting(
        0.05,
        "Share of a cycle that the trainer may wait; above it the generator is to make more.",
        gt=0,
        lt=1,
    )
    wait_low: float = setting(
        0.02, "Share below which a cycle counts as calm: what is more than enough is taken back.", ge=0, lt=1
    )
    calm_cycles: int = setting(5, "Calm cycles in a row before something is taken back.", ge=1)
    min_gain: float = setting(
        0.02,
        "What a change that throws work away or makes samples older must add to the rollouts trained a "
        "second, as a share; otherwise it is taken back, and tried again after twice as long each time.",
        ge=0,
    )
    max_waste: float = setting(
        0.4, "Share of the sampled tokens that oversampling may throw away.", ge=0, lt=1
    )
    max_groups_extra: int = setting(
        0, "oversampling.groups_extra at most; 0 takes two batches of groups.", ge=0
    )
    max_rollouts_extra: int = setting(
        0, "oversampling.rollouts_extra at most; 0 takes half of queue.group_size.", ge=0
    )
    min_running: int = setting(0, "queue.max_running_rollouts at least; 0 takes two groups.", ge=0)
    max_running: int = setting(65536, "queue.max_running_rollouts at most.", ge=1)
    kv_high: float = setting(
        0.9, "Share of the KV cache in use above which no more rollouts are let in.", gt=0, le=1
    )
    preempted: float = setting(0.05, "Preemptions by answers above which fewer rollouts run at once.", gt=0)
    prune_quantile: float = setting(
        0.99,
        "With the lever pruning: quantile of the rollouts' tokens at which they are pruned.",
        ge=0.5,
        lt=1,
    )
    generator_machines: int = setting(
        0,
        "Machines of the generator, where it shares a pool of equal machines with the trainer: the run then "
        "says when to move how many. 0 for no such pool.",
        ge=0,
    )
    trainer_machines: int = setting(0, "Machines of the trainer, likewise.", ge=0)

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if self.mode == "on" and not self.levers:
            rule = "must name a lever where mode is on: without one nothing is turned"
            yield Problem("levers", [], rule, 'Leave it out for the usual ones, or set mode = "off".')
        if twice := sorted({name for name in self.levers if self.levers.count(name) > 1}):
            rule = f"names {', '.join(twice)} more than once"
            yield Problem("levers", list(self.levers), rule, "Name each once.")
        if self.wait_low >= self.wait_high:
            rule = f"wait_low must be below wait_high ({self.wait_high:g})"
            yield Problem("wait_low", self.wait_low, rule, f"Use {self.wait_high / 2:g}.")
        if 0 < self.max_running < self.min_running:
            rule = f"min_running may not exceed max_running ({self.max_running})"
            yield Problem("min_running", self.min_running, rule, f"Use {self.max_running} or less.")
        if bool(self.generator_machines) != bool(self.trainer_machines):
            key = "trainer_machines" if self.generator_machines else "generator_machines"
            yield Problem(key, 0, "both sides of a pool of machines are given, or none", "Give it too.")
