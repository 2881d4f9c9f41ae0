"""`headway whatif`: a recorded run again, with settings changed.

The real scheduler is driven over the run's own lengths, durations and rewards (`recorded`), and the engine
and the trainer that were fitted to it (`calibrate`). First the unchanged run, as it was recorded: how far
that is from what was measured is the model's own error. Then the unchanged and the changed run with the same
seeds, each of which deals the recorded groups anew; the interval of the difference is what that dealing makes
of it.

It predicts rates and staleness. What the policy would learn, and so how long its answers would become, it
does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, cast

from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

from headway.config.scheduler import scheduler_settings
from headway.core.errors import UserError
from headway.matching.calibrate import calibrate_recording
from headway.matching.calibration import Calibration
from headway.matching.engine import MeasuredEngine
from headway.matching.fleet import FleetOf
from headway.matching.recorded import RecordedWorkload
from headway.matching.recording import record
from headway.matching.simulate_models import ModelledDriver
from headway.matching.spec import TrainerPoolSettings
from headway.matching.trainer_model import RooflineTrainer
from headway.matching.whatif_changes import Change, change
from headway.telemetry.metrics import RunMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headway.matching.recorded_run import JournalLike

MIN_SEEDS = 3  # for an interval: that of two is some ten times their spread
METRICS = {
    "rl.consumption.wall_samples_per_s": "trained samples/s",
    "rl.production.samples_per_s": "produced samples/s",
    "rl.production.effective_samples_per_s": "effective production",
    "rl.trainer.wait_fraction": "trainer waits",
    "rl.staleness.token.mean": "token staleness, steps",
    "rl.staleness.trajectory.mean": "trajectory staleness",
    "rl.discard.rollout_fraction": "rollouts discarded",
    "rl.queue.depth.signal.mean": "groups waiting, mean",
    "rl.latency.end_to_end_s.mean": "rollout latency, s",
}
"""What is compared: metric, or a part of one, and its words."""

stats_: Any = cast("Any", stats)  # scipy has no types


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric; None where a run does not tell it."""

    key: str
    measured: float | None  # of the run
    replayed: float | None  # of its simulation, unchanged
    before: float | None  # mean over seeds, unchanged
    after: float | None  # mean over seeds, changed
    difference: float | None  # after - before
    low: float | None  # 95 % interval of the difference
    high: float | None

    @property
    def error(self) -> float | None:
        """The model's own error: of the simulated unchanged run against the measured one, relative."""
        if self.measured is None or self.replayed is None or not self.measured:
            return None
        return self.replayed / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A prediction."""

    changes: tuple[str, ...]
    seeds: int
    compared: tuple[Compared, ...]
    drawn: float  # share of rollouts of the changed run that never ran in the recorded one
    extended: float  # share of those that were cut off in the recorded run, and go on as drawn
    calibration: Calibration

    def of(self, key: str) -> Compared:
        """Return one metric."""
        return next(one for one in self.compared if one.key == key)


def whatif(
    journal: JournalLike,
    changes: Sequence[str],
    seeds: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> WhatIf:
    """Predict what a run would have done with other settings; see `Replay`, which takes several questions.

    Raises UserError where the run has all of these values already.
    """
    replay = Replay(journal)
    before, after = change(replay.calibration, ()), change(replay.calibration, changes)
    if replace(after, named=()) == before and after.control == before.control:
        raise UserError(
            "the run has these values already: there is nothing to predict",
            value=" ".join(changes),
            remedy="Give another value; the run's are in its config.toml",
        )
    return replay.whatif(changes, seeds, progress)


class Replay:
    """A recorded run that can be simulated again.

    Attributes:
        calibration: what was fitted to it.
        measured: its own metrics.
    """

    def __init__(self, journal: JournalLike) -> None:
        """Read a journal and fit it; raise UserError for a run that is too short to be simulated."""
        self._recording = record(journal)
        self.calibration = calibrate_recording(self._recording)
        metrics = RunMetrics(journal.header)
        for entry in journal:
            metrics.feed(entry)
        self.measured = metrics.summary()
        self._unchanged: dict[int, dict[str, Any]] = {}  # metrics by seed
        timings = self.calibration.timings
        if timings.decode_base_s is None or timings.step_base_s is None:
            what = "answers" if timings.decode_base_s is None else "steps"
            raise UserError(
                f"the run must be long enough to be simulated again: its {what} are too few",
                remedy="Let it run longer, or plan from a SPEC: `headway plan`",
            )

    def whatif(
        self, changes: Sequence[str], seeds: int = 5, progress: Callable[[str], None] = lambda line: None
    ) -> WhatIf:
        """Predict what the run would have done with other settings.

        Args:
            changes: `key=value`, of the settings in `whatif_changes`.
            seeds: simulations of the changed run, and of the unchanged one.
            progress: is told before each of these what is simulated.

        Raises:
            ConfigError: a setting that cannot be predicted or is wrong.
        """
        changed = change(self.calibration, changes)
        befores, afters = list[dict[str, Any]](), list[dict[str, Any]]()
        drawn = extended = every = 0
        for seed in range(1, seeds + 1):
            progress(f"simulating the run with seed {seed} of {seeds}, as it was and changed")
            befores.append(self.unchanged(seed))
            summary, workload = self.run(changed, seed)
            afters.append(summary)
            drawn, extended = drawn + workload.num_drawn, extended + workload.num_extended
            every += workload.num_drawn + workload.num_extended + workload.num_recorded
        as_it_was, every = self.unchanged(0), max(1, every)
        compared = tuple(_compared(key, self.measured, as_it_was, befores, afters) for key in METRICS)
        return WhatIf(tuple(changes), seeds, compared, drawn / every, extended / every, self.calibration)

    def unchanged(self, seed: int) -> dict[str, Any]:
        """Simulate the run as it was, with its groups as they were for seed 0; return the metrics."""
        if seed not in self._unchanged:
            self._unchanged[seed] = self.run(change(self.calibration, ()), seed)[0]
        return self._unchanged[seed]

    def run(self, settings: Change, seed: int) -> tuple[dict[str, Any], RecordedWorkload]:
        """Simulate; return the metrics and the workload, which says what was drawn."""
        config, timings = settings.config, settings.timings
        scheduler = scheduler_settings(config)
        size = config.queue.batch_size / max(1, self._batch_size())
        steps = max(1, round(self.calibration.steps / size))
        by_steps = self.measured.get("outcome") == "steps"
        window_s = float(self.measured.get("window_s") or 0.0)
        # A run that ended by its steps admits nothing that could not train any more; another one goes on.
        stop = replace(
            scheduler.stop, steps=steps if by_steps else 0, wall_s=0.0 if by_steps else max(window_s, 1e-3),
            target_reward=0.0,
        )  # fmt: skip
        workload = RecordedWorkload(
            self._recording, self.calibration.workload,
            max_context_tokens=config.generator.max_context_tokens, seed=seed, scales=settings.scales,
        )  # fmt: skip
        driver = ModelledDriver(
            replace(scheduler, stop=stop),
            engine=MeasuredEngine(
                None, timings, max_running=config.generator.max_running, kv_tokens=timings.kv_tokens or 0
            ),
            replicas=config.generator.replicas,
            trainer=RooflineTrainer(None, None, TrainerPoolSettings(), timings, None, 0.0, 0.0),
            workload=workload,
            fleet=FleetOf(settings.fleet),
            seed=seed,
            num_tasks=self._recording.num_tasks,
            control=settings.control,
        )
        return driver.run().metrics, workload

    def _batch_size(self) -> int:
        return int(self.calibration.config.get("queue", {}).get("batch_size", 1))


def value_of(summary: dict[str, Any], key: str) -> float | None:
    """Return a metric, or a part of one: `rl.staleness.token.mean` is `mean` of `rl.staleness.token`."""
    if key in summary:
        return summary[key]
    whole, _, part = key.rpartition(".")
    found = summary.get(whole)
    return cast("dict[str, float | None]", found).get(part) if isinstance(found, dict) else None


def _compared(
    key: str,
    measured: dict[str, Any],
    replayed: dict[str, Any],
    befores: list[dict[str, Any]],
    afters: list[dict[str, Any]],
) -> Compared:
    pairs = [(value_of(one, key), value_of(two, key)) for one, two in zip(befores, afters, strict=True)]
    known = [(one, two) for one, two in pairs if one is not None and two is not None]
    if not known:
        return Compared(key, value_of(measured, key), value_of(replayed, key), None, None, None, None, None)
    differences = [two - one for one, two in known]
    mean = fmean(differences)
    # Each seed is a bootstrap draw of the run, so their spread is the error of one such difference.
    spread = (
        float(stats_.t.ppf(0.975, len(known) - 1)) * stdev(differences) if len(known) >= MIN_SEEDS else None
    )
    return Compared(
        key,
        value_of(measured, key),
        value_of(replayed, key),
        fmean(one for one, _ in known),
        fmean(two for _, two in known),
        mean,
        None if spread is None else mean - spread,
        None if spread is None else mean + spread,
    )
