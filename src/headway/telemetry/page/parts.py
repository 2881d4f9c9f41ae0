"""What a page is made of: sections of plots and tables. Text is plain; escaping is the template's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.telemetry.told import Findings


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot. An empty one is never made: builders return None instead."""

    id: str  # of the element that it is drawn into
    title: str
    unit: str  # of the vertical axis, "" for none
    caption: str  # how to read it, one or two short sentences
    figure: dict[str, Any]  # {"data": traces, "layout": layout} of plotly, colours by name of a CSS variable
    wide: bool = False  # over both columns


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than text."""

    text: str
    bar: float | None = None  # a bar behind the text, share of the widest one
    title: str = ""  # shown when the pointer rests on it


@dataclass(frozen=True, slots=True)
class Table:
    """A table; columns whose title begins with `<` are text and stand left, others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str | Cell, ...]]
    caption: str = ""
    folded: bool = False  # shown when asked for
    wide: bool = False  # over both columns, as all with many columns are


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline number."""

    label: str
    value: str
    note: str = ""
    tone: str = ""  # "", good, bad or busy


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a title that the navigation lists."""

    id: str
    title: str
    plots: list[Plot] = field(default_factory=list[Plot])
    tables: list[Table] = field(default_factory=list[Table])
    lines: list[str] = field(default_factory=list[str])  # sentences below
    findings: Findings | None = None  # above the plots

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to show."""
        return not (self.plots or self.tables or self.lines)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as it is at the end of what the journal tells."""

    key: str  # full
    value: str  # as TOML, "not set" for none
    default: str  # likewise, "required" where there is none
    differs: bool  # from the default
    doc: str = ""
    before: str | None = None  # what the run began with, where that was something else; as TOML
