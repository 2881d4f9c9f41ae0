"""Which datasets the library has, as known here, so that a config is checked without the library.

`datasets.csv` was measured with the version of the library that its first line names. A name that it lacks is
asked of the installed library, which may be newer.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib.resources import files

from headway.core.errors import EnvironmentSetupError
from headway.core.near import did_you_mean, nearest
from headway.environments.reasoning_gym.process import INSTALL, NOT_INSTALLED, START_S, LibraryProcess

PREFIX = "reasoning-gym:"


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset.

    Attributes:
        name: the library's.
        num_levels: of its curriculum, 0 without one.
        broken: levels at which the library makes no tasks.
        note: what is to be known; empty where nothing is.
    """

    name: str
    num_levels: int
    broken: tuple[int, ...]
    note: str

    def in_words(self) -> str:
        """Return levels, faults and note as one line."""
        parts = [f"levels 1 to {self.num_levels}" if self.num_levels else "no levels"]
        if self.broken:
            bad = "its default difficulty" if self.broken == (0,) else ", ".join(map(str, self.broken))
            parts.append(f"the library makes no tasks at {bad}")
        return "; ".join([*parts, *filter(None, [self.note])])


@functools.cache
def known_datasets() -> dict[str, Dataset]:
    """Return the datasets by name."""
    text = (files("headway.environments.reasoning_gym") / "datasets.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines()[1:])
    return {
        row["name"]: Dataset(
            row["name"], int(row["levels"]), tuple(map(int, row["broken"].split())), row["note"]
        )
        for row in rows
    }


@functools.cache
def library_datasets() -> dict[str, str]:
    """Return the names of the installed library with a line of its own on each.

    Raises EnvironmentSetupError when it is not installed.
    """
    child = LibraryProcess("", {})
    try:
        return child.ask("names", START_S)["names"]
    finally:
        child.close()


def check_name(name: str) -> None:
    """Raise EnvironmentSetupError unless there is such a dataset; `name` is without the prefix."""
    if name in known_datasets():
        return
    others: dict[str, str] = {}
    note = ""
    try:
        others = library_datasets()
    except EnvironmentSetupError:
        note = f" ({NOT_INSTALLED}: {INSTALL})"
    if name in others and name != "composite":
        return
    if name == "composite":
        raise EnvironmentSetupError(
            "reasoning-gym's composite mixes other datasets, which Headway does itself",
            value=PREFIX + name,
            remedy="Use sections [source.NAME], one for each dataset, with their weights",
            key="environment.name",
        )
    guess = did_you_mean(nearest(name, [*known_datasets(), *others]))
    raise EnvironmentSetupError(
        "reasoning-gym has no such dataset",
        value=PREFIX + name,
        remedy=f"{guess + ' ' if guess else ''}`headway env list reasoning-gym` shows them{note}",
        key="environment.name",
    )
