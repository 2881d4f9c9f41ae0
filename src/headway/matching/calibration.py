"""What calibration found: each value with its source, its fit, and whether the journal could tell it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from headway.matching.spec import FleetSettings, TimingSettings, WorkloadSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


MAX_KS = 0.1  # above which a fitted distribution is not that of the values


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value of a SPEC."""

    key: str  # full, such as workload.answer_tokens
    value: Any  # as a SPEC holds it; None where nothing stands in
    source: str  # what of the journal it rests on
    num: int = 0  # values that it rests on, cut ones included
    low: float | None = None  # 95 % interval
    high: float | None = None
    censored: float | None = None  # share of values that were cut off
    ks: float | None = None  # largest distance between the fitted distribution and the Kaplan-Meier curve
    r2: float | None = None  # of a line
    stands_in: str = ""  # why the journal cannot tell it, and what the value is instead

    @property
    def is_identified(self) -> bool:
        """Whether the journal tells it."""
        return not self.stands_in

    @property
    def fit(self) -> str:
        """The quality of the fit in words."""
        parts = [f"n = {self.num:,}"] if self.num else []
        if self.low is not None and self.high is not None and self.low <= self.value <= self.high:
            parts.append(f"95 %: {self.low:.4g} to {self.high:.4g}")
        if self.censored:
            parts.append(f"{self.censored:.0%} cut off")
        if self.ks is not None:
            parts.append(f"KS {self.ks:.3f}" + (": does not fit" if self.ks > MAX_KS else ""))
        if self.r2 is not None:
            parts.append(f"R2 {self.r2:.2f}")
        return ", ".join(parts)


@dataclass(slots=True)
class Found:
    """Collects parameters while a journal is looked at."""

    parameters: list[Parameter] = field(default_factory=list[Parameter])

    def add(self, key: str, value: Any, source: str, **fit: Any) -> None:
        """Note a value that the journal tells."""
        self.parameters.append(Parameter(key, value, source, **fit))

    def stand_in(self, key: str, value: Any, why: str, **fit: Any) -> None:
        """Note a value that the journal does not tell."""
        self.parameters.append(Parameter(key, value, "", stands_in=why, **fit))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A SPEC fitted to a run.

    Attributes:
        config: of the run, plain, with the changes that were made on the way.
        steps: optimizer steps that the run took.
        warnings: what a reader should know before trusting the values.
    """

    config: dict[str, Any]
    steps: int
    parameters: tuple[Parameter, ...]
    warnings: tuple[str, ...] = ()

    @property
    def workload(self) -> WorkloadSettings:
        """Section [workload]."""
        values = self._section("workload")
        drift = {key.partition(".")[2]: values.pop(key) for key in list(values) if key.startswith("drift.")}
        return replace(WorkloadSettings(), **values, drift=drift)

    @property
    def timings(self) -> TimingSettings:
        """Section [timings]."""
        return replace(TimingSettings(), **self._section("timings"))

    @property
    def fleet(self) -> FleetSettings:
        """Section [fleet]."""
        return replace(FleetSettings(), **self._section("fleet"))

    def parameter(self, key: str) -> Parameter:
        """Return the parameter of a full key; KeyError where there is none."""
        by_key = {parameter.key: parameter for parameter in self.parameters}
        return by_key[key]

    def plain(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "steps": self.steps,
            "parameters": {one.key: _plain(one) for one in self.parameters},
            "unidentified": [one.key for one in self.parameters if not one.is_identified],
            "warnings": list(self.warnings),
        }

    def _section(self, name: str) -> dict[str, Any]:
        return {
            one.key.partition(".")[2]: one.value
            for one in self.parameters
            if one.key.startswith(f"{name}.") and one.value is not None
        }


def _plain(parameter: Parameter) -> Mapping[str, Any]:
    values = {one.name: getattr(parameter, one.name) for one in fields(parameter)}
    del values["key"]
    return values
