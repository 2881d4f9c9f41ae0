"""What control would settle on, for a plan of a run with control.mode = "on".

A plan is of settings that stay. Where control turns them, the run is simulated with the controller first,
from the settings as written, until it has had the time to come to rest; the plan is then of what it left.
Rollouts are as they are at the plan's step: what control does as they drift is for `headway simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.core.events import SettingChanged, StepEnded
from headway.matching.build import models_of
from headway.matching.control_levers import KEYS
from headway.matching.fluid import Fluid
from headway.matching.plan import sample_of
from headway.matching.short_simulation import cut_models, cut_settings, driver_of, events_a_step, fitting_part
from headway.matching.spec_load import Spec

if TYPE_CHECKING:
    from headway.config.control import ControlSettings
    from headway.core.events import Event

SETTLING_EVENTS = 75_000
"""Of the simulation that settles: about two seconds."""

_STEPS = 60
_FEWEST_STEPS = 30  # a few cycles to see the wait, and some trials of three cycles each
_RESTS = 0.75  # of the steps, from which on a change says that it has not come to rest
_IN_PROPORTION = ("oversampling.groups_extra", "queue.max_running_rollouts")


@dataclass(frozen=True, slots=True)
class Followed:
    """A SPEC as control leaves it."""

    spec: Spec  # with the settings that the plan is of
    words: str
    settles_on: dict[str, float] | None  # by key, what is not as written; None where it is not predicted
    steps: int = 0  # that were simulated
    rests: bool = False  # whether the last quarter of them went without a change

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "settles_on": self.settles_on,
            "words": self.words,
            "steps": self.steps,
            "rests": self.rests,
        }


class _Changes:
    """Takes what control changed from the journal; keeps no journal."""

    def __init__(self) -> None:
        self.steps = 0
        self.values: dict[str, float] = {}
        self.last_step = 0  # at which something changed

    def write_event(self, seq: int, t: float, event: Event, commands: object, notes: object) -> None:
        """Look at one event."""
        if isinstance(event, StepEnded):
            self.steps = event.step
        elif isinstance(event, SettingChanged) and event.key in KEYS.values():
            self.values[event.key] = float(event.value)
            self.last_step = self.steps


def follow_control(
    spec: Spec, *, step: int = 0, budget_events: int = SETTLING_EVENTS, seed: int = 0
) -> Followed | None:
    """Return a SPEC with the settings that control would settle on; None where control is off.

    Args:
        spec: the run.
        step: after which the rollouts are drawn.
        budget_events: of the simulation, about; beyond it nothing is predicted.
        seed: of that simulation.

    Raises UserError for what does not fit, or an unknown accelerator.
    """
    control = spec.config.control
    if control.mode == "off":
        return None
    models = models_of(spec)
    flow = Fluid(spec, models, sample_of(spec, models, step, most_turns=6_000, fewest=4)).solve()
    each = events_a_step(spec, flow)
    part = fitting_part(spec.scheduler, models.replicas, each * _FEWEST_STEPS, budget_events)
    if each / part * _FEWEST_STEPS > budget_events:
        words = f"not predicted: {_FEWEST_STEPS} steps would take some {each / part * _FEWEST_STEPS:,.0f} "
        words += "events, which headway simulate has no limit for; the figures are of the settings as written"
        return Followed(spec, words, None)
    steps = min(_STEPS, int(budget_events * part / each))
    changes = _Changes()
    driver = driver_of(
        cut_settings(spec.scheduler, part),
        cut_models(models, part),
        steps=steps,
        step=step,
        seed=seed,
        journal=changes,
        control=_cut_control(control, part),
    )
    summary = driver.run(max_events=3 * budget_events)
    if changes.steps < _FEWEST_STEPS:
        words = (
            f"not predicted: a simulation of {summary.num_events:,} events came to {changes.steps} steps; "
        )
        return Followed(spec, words + "the figures are of the settings as written", None)
    found = _of_the_whole(changes.values, spec, part)
    rests = changes.last_step < _RESTS * changes.steps
    simulated = f"{changes.steps} steps" + (f" of a part of 1/{part}" if part > 1 else "")
    if not found:
        again = "" if rests else ", though it was still trying some"
        words = f"leaves the settings as they are{again} (simulated: {simulated})"
        return Followed(spec, words, {}, changes.steps, rests)
    said = {key: int(value) if value == int(value) else value for key, value in found.items()}
    named = ", ".join(f"{key} = {value}" for key, value in said.items())
    what = "settles on" if rests else "had not come to rest, and was at"
    words = f"{what} {named} (simulated: {simulated}); the figures are of these. Without it: control.mode=off"
    changed = spec.changed(*(f"{key}={value}" for key, value in said.items()))
    return Followed(changed, words, found, changes.steps, rests)


def _of_the_whole(values: dict[str, float], spec: Spec, part: int) -> dict[str, float]:
    """Return the values that differ from the SPEC's, for the whole run."""
    scheduler, found = spec.scheduler, dict[str, float]()
    for key, value in values.items():
        section, _, name = key.partition(".")
        before = getattr(getattr(scheduler, section), name)
        if key == "queue.depth":
            before = scheduler.depth
        whole = value * part if key in _IN_PROPORTION else value
        if whole != before:
            found[key] = whole
    return found


def _cut_control(control: ControlSettings, part: int) -> ControlSettings:
    """Return the bounds of a part."""
    return replace(
        control,
        max_groups_extra=-(-control.max_groups_extra // part),
        min_running=-(-control.min_running // part),
        max_running=max(1, control.max_running // part),
    )
