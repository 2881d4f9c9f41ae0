"""What an accelerator costs by the hour, a run by the million tokens, and what a managed service would take.

Total cost of ownership, per accelerator and hour (H = 8,760 hours a year):
    capital   p * annuity / H; annuity = r / (1 - (1 + r)^-years), p the price of an accelerator's part of a
              server with its network and storage, r the cost of capital
    power     kW * load * PUE * $/kWh
    hosting   kW * $/kW a month * 12 / H
    upkeep    share of p a year / H: staff, spares, software
The defaults are those of one H200 in a server of eight. Of them the field report tells the price of the
server (361,000 dollars), that capital is 72.5 %, and the sum, 1.59; life and cost of capital are chosen so
that its sums come out, the rest are usual figures.

A service asks for three kinds of tokens: a trained row of n tokens, s of them sampled, costs
prefill (n - s) + sample s + train n.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from math import expm1, log1p

from headway.core.settings import setting

HOURS = 8760.0


@dataclass(frozen=True, slots=True)
class CostSettings:
    """Section [cost]: what owning one accelerator costs, its part of the server and the network included."""

    capital_usd: float = setting(
        45_125.0, "Price of one accelerator's part of a server, with network and storage.", ge=0.0, le=1e9
    )
    years: float = setting(5.0, "In which it is written off.", ge=0.01, le=1000.0)
    capital_rate: float = setting(0.0386, "Cost of capital a year.", ge=0.0, le=10.0)
    power_kw: float = setting(1.275, "Drawn at full load, its part of the server's.", ge=0.0, le=1000.0)
    power_load: float = setting(0.8, "Of that, on average.", ge=0.0, le=1.0)
    pue: float = setting(1.25, "Power of the building for each that the servers take.", ge=1.0, le=100.0)
    usd_per_kwh: float = setting(0.087, "Price of electricity.", ge=0.0, le=1000.0)
    hosting_usd_per_kw_month: float = setting(130.0, "Price of a place in a data centre.", ge=0.0, le=1e6)
    upkeep_fraction: float = setting(0.02, "Of the capital a year: staff, spares, software.", ge=0.0, le=10.0)
    used_fraction: float = setting(
        1.0, "Of the hours that somebody uses it; the others are paid by those.", ge=0.001, le=1.0
    )


@dataclass(frozen=True, slots=True)
class Ownership:
    """Dollars of one accelerator for one hour, by what they pay for."""

    capital: float
    power: float
    hosting: float
    upkeep: float
    unused: float

    @property
    def total(self) -> float:
        """Everything."""
        return self.capital + self.power + self.hosting + self.upkeep + self.unused

    @property
    def capital_fraction(self) -> float:
        """Of everything."""
        return self.capital / self.total if self.total else 0.0


def ownership(settings: CostSettings) -> Ownership:
    """Return the cost of an hour of one accelerator."""
    rate = settings.capital_rate
    annuity = rate / -expm1(-settings.years * log1p(rate)) if rate else 1.0 / settings.years
    capital = settings.capital_usd * annuity / HOURS
    power = settings.power_kw * settings.power_load * settings.pue * settings.usd_per_kwh
    hosting = settings.power_kw * settings.hosting_usd_per_kw_month * 12.0 / HOURS
    upkeep = settings.capital_usd * settings.upkeep_fraction / HOURS
    paid = capital + power + hosting + upkeep
    return Ownership(capital, power, hosting, upkeep, paid / settings.used_fraction - paid)


@dataclass(frozen=True, slots=True)
class ServicePrice:
    """A managed service's list price for one model, dollars per million tokens."""

    service: str
    model: str
    prefill: float
    sample: float
    train: float
    date: str
    source: str

    def per_mtok(self, sampled_fraction: float) -> float:
        """Return the dollars for a million tokens of trained rows of which this share was sampled."""
        return self.train + self.sample * sampled_fraction + self.prefill * (1.0 - sampled_fraction)


@functools.cache
def service_prices() -> tuple[ServicePrice, ...]:
    """Return the package's table."""
    text = resources.files("headway.matching").joinpath("data/prices.csv").read_text(encoding="utf-8")
    return tuple(
        ServicePrice(
            row["service"],
            row["model"],
            float(row["prefill_usd_per_mtok"]),
            float(row["sample_usd_per_mtok"]),
            float(row["train_usd_per_mtok"]),
            row["date"],
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def price_of(model: str) -> ServicePrice | None:
    """Return a service's price for a model of the table, None where none is known."""
    return next((price for price in service_prices() if price.model == model), None)


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run costs, and by which tokens."""

    usd_per_hour: float
    row_tokens_per_s: float  # tokens of the rows that are trained, prompts and observations included
    sampled_tokens_per_s: float  # of these, those that were sampled: what the loss counts

    @property
    def usd_per_mtok(self) -> float:
        """Dollars per million tokens that the loss counts."""
        return self.usd_per_hour / 3600.0 * 1e6 / self.sampled_tokens_per_s

    @property
    def usd_per_row_mtok(self) -> float:
        """Dollars per million tokens of trained rows."""
        return self.usd_per_hour / 3600.0 * 1e6 / self.row_tokens_per_s
