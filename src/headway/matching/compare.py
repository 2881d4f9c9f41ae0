"""`headway compare`: runs side by side; their numbers are made in `compare_rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import UserError
from headway.matching.compare_rows import MIN_STEPS, Row, rows_of
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

_PLACES = ("run.", "sandbox.directory", "telemetry.")  # settings that make no run another


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side.

    Attributes:
        names: of the runs.
        rows: metrics.
        settings: key -> each run's value, of the settings that differ.
        notes: what makes the comparison doubtful.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, "tuple[Any, ...]"])
    notes: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "runs": list(self.names),
            "notes": list(self.notes),
            "settings": {key: list(values) for key, values in self.settings.items()},
            "metrics": [row.to_plain() for row in self.rows],
        }


def compare(runs: Sequence[tuple[str, Reading]]) -> Comparison:
    """Return runs side by side; the first is what the others are held against.

    Raises UserError for fewer than two runs, for one without a step, and for runs of different environments.
    """
    if len(runs) < 2:
        raise UserError("a comparison takes two runs or more", value=len(runs), remedy="Name another run")
    for name, reading in runs:
        if not reading.records:
            remedy = "Leave it out, or wait for its first step"
            raise UserError("a run without a step has nothing to compare", value=name, remedy=remedy)
    environments = [str(reading.get("environment.name", "")) for _, reading in runs]
    if len(set(environments)) > 1:
        raise UserError(
            "runs of different environments cannot be compared: their rewards are not of one kind",
            value=", ".join(f"{name}: {found}" for (name, _), found in zip(runs, environments, strict=True)),
            remedy="Compare runs of one environment",
        )
    settings = _differing([reading for _, reading in runs])
    readings = [reading for _, reading in runs]
    return Comparison(
        tuple(name for name, _ in runs), tuple(rows_of(readings)), settings, tuple(_notes(readings, settings))
    )


def _differing(readings: Sequence[Reading]) -> dict[str, tuple[Any, ...]]:
    """Return the settings that are not the same in all runs, as they are at the end."""
    flat = [dict(_flat(reading.settings)) for reading in readings]
    keys = dict.fromkeys(key for one in flat for key in one)
    return {
        key: tuple(one.get(key) for one in flat)
        for key in keys
        if not key.startswith(_PLACES) and any(one.get(key) != flat[0].get(key) for one in flat)
    }


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            found += _flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        elif prefix:
            found.append((f"{prefix}{name}", value))
    return found


def _notes(readings: Sequence[Reading], settings: Mapping[str, tuple[Any, ...]]) -> list[str]:
    notes: list[str] = []
    tasks = [key for key in settings if key.startswith("environment.args")]
    if tasks:
        notes.append(f"the tasks differ ({', '.join(tasks)}): rewards are not of the same tasks")
    if "model.path" in settings:
        notes.append("the models differ")
    machines = {reading.header.machine for reading in readings}
    if len({reading.header.simulated for reading in readings}) > 1:
        notes.append(
            "some runs are simulated and others ran: times and rates of the first are predictions, their "
            "rewards are made up"
        )
    elif len(machines) > 1:
        notes.append("the machines differ: rates and times say little of the settings")
    counts = [len(reading.records) for reading in readings]
    if min(counts) < MIN_STEPS:
        notes.append(f"a run has fewer than {MIN_STEPS} steps: it has no intervals")
    longest = ratio(max(counts), min(counts)) or 1.0
    if longest >= 2.0:
        notes.append("one run has at least twice the steps of another: look at what they have in common")
    return notes
