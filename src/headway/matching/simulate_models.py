"""A whole run of models: the real scheduler, a modelled generator, trainer, workload and sandbox fleet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.events import SettingChanged
from headway.matching.control import Controller
from headway.matching.plain_models import PlainFleet
from headway.matching.roles import Faults, SimModels, SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.matching.simulated_tally import Tally
from headway.queue.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.config.control import ControlSettings
    from headway.core.commands import Command
    from headway.core.events import Event
    from headway.core.notes import Note
    from headway.matching.contracts import EngineModel, FleetModel, TrainerModel, Workload
    from headway.queue.settings import SchedulerSettings

_SAMPLE_S = 5.0  # between two measurements of the engines' load
_NO_END = 1 << 62


class Writer(Protocol):
    """Takes journal lines; telemetry's `JournalWriter` does."""

    def write_event(
        self, seq: int, t: float, event: Event, commands: Sequence[Command], notes: Sequence[Note]
    ) -> None:
        """Write one event with the commands and notes that handling it gave."""
        ...


@dataclass(frozen=True, slots=True)
class SimSummary:
    """What a simulated run came to.

    `metrics` has telemetry's names where telemetry has the metric; those that begin with `sim.` are the
    simulation's own. Times are virtual seconds.
    """

    outcome: str
    message: str
    steps: int  # optimizer steps in the window
    num_events: int
    virtual_s: float
    metrics: dict[str, Any]
    decisions: tuple[SettingChanged, ...] = ()  # of the controller


class ModelledDriver:
    """Simulates runs of these models; `run` may be called again and begins anew.

    Attributes:
        driver: the simulated driver of the newest run, None before.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        engine: EngineModel,
        replicas: int,
        trainer: TrainerModel,
        workload: Workload,
        fleet: FleetModel | None = None,
        seed: int = 0,
        journal: Writer | None = None,
        num_tasks: int = 0,
        faults: Faults | None = None,
        control: ControlSettings | None = None,
    ) -> None:
        """Take the models.

        Args:
            settings: the scheduler's; replicas and steps are replaced.
            engine: of each replica.
            replicas: how many.
            trainer: one.
            workload: what rollouts do.
            fleet: how sandboxes start; None for at once.
            seed: of all chance; the same one gives the same run, to the byte.
            journal: takes every line; None keeps nothing, so that memory does not grow with the run.
            num_tasks: of the train split, 0 for no end.
            faults: what goes wrong beside what the models say; None for nothing.
            control: section [control]; None for no controller.
        """
        self._settings = replace(settings, num_replicas=replicas)
        self._control = control
        samples = journal is not None or control is not None or settings.concurrency.mode != "fixed"
        faults = Faults(start_s=0.0, sample_s=_SAMPLE_S if samples else 0.0) if faults is None else faults
        fleet = PlainFleet(SimSettings(sandbox_start_s=0.0)) if fleet is None else fleet
        self._models = SimModels(engine, trainer, workload, fleet, faults, num_tasks)
        self._seed, self._journal = seed, journal
        self.driver: SimulatedDriver | None = None

    def run(self, max_steps: int = 0, *, warmup_steps: int = 0, max_events: int = 0) -> SimSummary:
        """Simulate until the run ends.

        Args:
            max_steps: optimizer steps; 0 takes those of the settings.
            warmup_steps: of these, the first ones that the metrics leave out.
            max_events: after which it is looked at as it stands, with rollouts in flight; 0 for no such end.

        Raises DeadlineError when the run hangs, naming who waits for whom.
        """
        settings = self._settings
        if max_steps:
            settings = replace(settings, stop=replace(settings.stop, steps=max_steps))
        run = SimRun(Scheduler(settings), keeps=False)
        if self._control is not None:
            run.controller = Controller(self._control, settings)
        driver = SimulatedDriver(run, self._models, self._seed)
        decisions: list[SettingChanged] = []
        tally = Tally(driver.rollouts.known, settings.solved_reward, settings.queue.bound, warmup_steps)
        journal = self._journal
        if journal is None and run.controller is None:
            driver.sink = tally.take
        else:

            def every(seq: int, t: float, event: Event, commands: list[Command], notes: list[Note]) -> None:
                if journal is not None:
                    journal.write_event(seq, t, event, commands, notes)
                if isinstance(event, SettingChanged) and event.by == "control":
                    decisions.append(event)
                tally.take(seq, t, event, commands, notes)

            driver.sink = every
        self.driver = driver
        driver.play(max_events=_NO_END, stop_after=max_events or None)
        metrics = {**tally.summary(), **self._generator(driver)}
        return SimSummary(
            tally.outcome,
            tally.message,
            metrics["steps"],
            run.num_events,
            tally.now,
            metrics,
            tuple(decisions),
        )

    def _generator(self, driver: SimulatedDriver) -> dict[str, Any]:
        """Return how the replicas spent the whole run."""
        replicas, now = list(driver.rollouts.replicas.values()), driver.now_s
        whole = max(now, 1e-9) * len(replicas)
        capacity = self._models.engine.kv_tokens or inf
        return {
            "rl.generator.preemptions": driver.memory.num_preemptions,
            "sim.generator.decode_fraction": sum(r.decoded_s for r in replicas) / whole,
            "sim.generator.prefill_fraction": sum(r.prefilled_s for r in replicas) / whole,
            "sim.generator.running": sum(r.running_s for r in replicas) / whole,
            "sim.generator.kv_used_fraction": sum(r.resident_s for r in replicas) / whole / capacity,
            "sim.generator.decoded_tokens": round(sum(r.num_decoded for r in replicas)),
            "sim.generator.prefilled_tokens": sum(r.num_prefilled for r in replicas),
        }
