"""Which settings a re-simulation can change, and why it refuses the others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.config.compose import EXAMPLES, Config
from headway.config.rules import RULES
from headway.config.source import COMMAND_LINE, overridden, parse_override
from headway.config.validate import validate
from headway.core.check import Mismatch, convert
from headway.core.errors import ConfigError, UserError
from headway.core.near import did_you_mean, nearest, nearest_key
from headway.core.schema import keys_of, sections_of
from headway.matching.control_levers import KEYS
from headway.matching.recorded import Scales
from headway.matching.spec import FleetSettings, TimingSettings, WorkloadSettings
from headway.matching.spec_load import a_simulation_holds_it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.config.control import ControlSettings
    from headway.config.validate import CrossRule
    from headway.core.settings import Problem
    from headway.matching.calibration import Calibration

PREDICTED = (
    "queue", "oversampling", "acceptance.band_low", "acceptance.band_high", "concurrency", "staleness",
    "partial", "control", "eval", "checkpoint.every_steps", "generator.replicas", "generator.max_running",
    "generator.kv_on_update", "generator.max_answer_tokens", "generator.max_context_tokens",
    "sandbox.max_live", "sandbox.max_starts_per_s", "sandbox.max_starting",
)  # fmt: skip
"""Sections and keys of a run's config that a re-simulation follows."""

SCALED = ("workload.answer_tokens", "workload.tool_s", "workload.score_s")
"""Means of [workload] that may change: what was recorded is multiplied."""

REFUSED = {
    "trainer": "it changes what the policy learns or what a step costs, and the journal tells neither; a "
    "step's time is timings.step_base_s, step_row_s and step_token_s",
    "algorithm": "it changes what the policy learns, and learning is not predicted",
    "model": "another model answers otherwise, and at another speed: `headway plan` compares models",
    "environment": "rollouts are replayed as they were recorded; workload.tool_s and workload.answer_tokens "
    "scale them",
    "source": "which tasks are taken changes what rollouts do, and those tasks were not run",
    "curriculum": "which tasks are taken depends on what the policy learns",
    "reward": "rewards are replayed as they were recorded; workload.score_s scales their time",
    "pruning": "what a watch would have said of a rollout is not in the journal",
    "guard": "it looks at what the policy learns",
    "stop": "the prediction is over as much of the run as was recorded",
    "acceptance.verdict": "what the function would say is not known",
}
"""Sections and keys that it does not, and why; the others have no effect on rates that is modelled."""

_OTHERS = "its effect on rates is not modelled"
CAN_CHANGE = "docs/matching.md lists what can be changed, `headway whatif --help` has examples"


@dataclass(frozen=True, slots=True)
class Change:
    """A run's settings after changes, as the simulation takes them."""

    config: Config
    timings: TimingSettings
    fleet: FleetSettings
    scales: Scales
    named: tuple[str, ...] = ()  # keys that changes give, even with the values that they have

    @property
    def control(self) -> ControlSettings | None:
        """What the controller may turn: nothing that a change names, as with `headway set`; None for off."""
        settings = self.config.control
        levers = tuple(lever for lever in settings.levers if KEYS[lever] not in self.named)
        return dataclasses.replace(settings, levers=levers) if settings.mode == "on" and levers else None


def change(calibration: Calibration, overrides: Sequence[str]) -> Change:
    """Return the settings of a run with `key=value` overrides on top; without any, the run's own.

    Raises ConfigError with every problem: a setting that cannot be predicted, an unknown one, a wrong value.
    """
    mine: list[str] = []
    named: list[str] = []
    measured: dict[str, Any] = {}
    problems: list[UserError] = []
    for override in overrides:
        try:
            parts, value = parse_override(override)
        except UserError as error:
            problems.append(error)
            continue
        key = ".".join(parts)
        section = parts[0]
        if section in ("timings", "fleet", "workload"):
            try:
                measured[key] = _measured(key, value)
            except UserError as error:
                problems.append(error)
        elif problem := _refusal(key, value):
            problems.append(problem)
        else:
            mine.append(override)
            named.append(key)
    before = _config(calibration, ())
    after = before
    try:
        after = _config(calibration, mine, a_simulation_holds_it)
    except ConfigError as error:
        problems += error.problems
    scales, cut = _scales(calibration, measured, before, after)
    if problems or cut:
        raise ConfigError([*problems, *cut])
    timings, fleet = calibration.timings, calibration.fleet
    by_name = {key: value for key, value in measured.items() if not key.startswith("workload.")}
    for key, value in by_name.items():
        section, _, name = key.partition(".")
        if section == "timings":
            timings = dataclasses.replace(timings, **{name: value})
        else:
            fleet = dataclasses.replace(fleet, **{name: value})
    if any(key.startswith("timings.") for key in by_name) and (wrong := list(timings.problems())):
        raise ConfigError([_blamed(problem) for problem in wrong])
    return Change(after, timings, fleet, scales, tuple(named))


def _blamed(problem: Problem) -> UserError:
    key = f"timings.{problem.key}"
    return UserError(problem.rule, value=problem.value, key=key, remedy=problem.remedy, where=COMMAND_LINE)


def _config(calibration: Calibration, overrides: Sequence[str], *rules: CrossRule[Config]) -> Config:
    values = {
        name: {key: value for key, value in table.items() if value is not None}  # as TOML, which has no None
        for name, table in calibration.config.items()
        if name in sections_of(Config)
    }
    for key, example in EXAMPLES.items():
        section, _, name = key.partition(".")
        if section in sections_of(Config):
            values[section] = {name: example, **values.get(section, {})}
            if not values[section][name]:  # a simulated run may have no model
                values[section][name] = example
    source = overridden(values, "the run's config", overrides)
    return validate(Config, source, examples=EXAMPLES, rules=(*RULES, *rules))


def _refusal(key: str, value: object) -> UserError | None:
    names = (key, key.partition(".")[0])
    if any(name in PREDICTED for name in names):
        return None
    known = {section: tuple(keys_of(settings)) for section, settings in sections_of(Config).items()}
    section, _, name = key.partition(".")
    is_argument = key.startswith(("environment.args", "source."))
    if name not in known.get(section, ()) and not is_argument:
        remedy = did_you_mean(nearest_key(section, name, known)) or CAN_CHANGE
        return UserError("is not a setting", value=value, key=key, remedy=remedy, where=COMMAND_LINE)
    rule = f"cannot be predicted: {next((REFUSED[name] for name in names if name in REFUSED), _OTHERS)}"
    return UserError(rule, value=value, key=key, remedy=CAN_CHANGE, where=COMMAND_LINE)


def _measured(key: str, value: object) -> Any:
    """Return the checked value of a key of [timings], [fleet] or [workload]."""
    section, _, name = key.partition(".")
    settings = {"timings": TimingSettings, "fleet": FleetSettings, "workload": WorkloadSettings}[section]
    known = keys_of(settings)
    if name not in known:
        remedy = did_you_mean(nearest(name, known)) or f"The keys of [{section}] are {', '.join(known)}"
        raise UserError("is not a setting", value=value, key=key, remedy=remedy, where=COMMAND_LINE)
    if section == "workload" and key not in SCALED:
        rule = "cannot be predicted: rollouts are replayed as they were recorded"
        remedy = f"Of [workload] {', '.join(SCALED)} may change, which scale them; `headway plan` takes all"
        raise UserError(rule, value=value, key=key, remedy=remedy, where=COMMAND_LINE)
    try:
        return convert(value, known[name].hint, known[name].rule)
    except Mismatch as mismatch:
        raise UserError(
            mismatch.rule, value=value, key=key, remedy=mismatch.remedy, where=COMMAND_LINE
        ) from None


def _scales(
    calibration: Calibration, measured: dict[str, Any], before: Config, after: Config
) -> tuple[Scales, list[UserError]]:
    """Return what is done to recorded rollouts, and what cannot be done."""
    factors, problems = dict[str, float](), list[UserError]()
    for key in SCALED:
        if key not in measured:
            continue
        name = key.partition(".")[2]
        fitted = float(getattr(calibration.workload, name))
        if not fitted:
            rule, remedy = "cannot be scaled: the run has none", "Leave it out"
            problems.append(UserError(rule, value=measured[key], key=key, remedy=remedy, where=COMMAND_LINE))
            continue
        factors[name] = float(measured[key]) / fitted
    limits: dict[str, int] = {}
    for name in ("max_answer_tokens", "max_context_tokens"):
        old, new = getattr(before.generator, name), getattr(after.generator, name)
        if new > old:
            rule = f"may not be raised above the run's {old}: what cut rollouts would have said is not known"
            key = f"generator.{name}"
            problems.append(UserError(rule, value=new, key=key, remedy="Lower it", where=COMMAND_LINE))
        elif new < old:
            limits[name] = new
    return Scales(**factors, **limits), problems
