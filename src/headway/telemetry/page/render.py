"""Puts a page together: one file, no network, and nothing that a user wrote is read as HTML or script.

The template escapes all text. Figures travel as JSON in which `<`, `>` and `&` are escaped, so that no value
can end the element that holds them. The page's own policy lets only the scripts run whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from headway.core.errors import UserError
from headway.telemetry.page.axes import SYMBOLS, Axes
from headway.telemetry.page.sections import sections
from headway.telemetry.page.thin import MAX_MEANS, MAX_POINTS
from headway.telemetry.page.tiles import STATES, tiles
from headway.telemetry.page.transcripts import Transcript, views
from headway.telemetry.text import seconds
from headway.telemetry.visible import visible

if TYPE_CHECKING:
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.page.parts import Section, SettingRow
    from headway.telemetry.told import Findings

_MARKS = {"alarm": "guard alarm", "rollback": "rollback", "resume": "resume", "setting": "setting changed"}


def render(
    data: PageData,
    *,
    name: str,
    settings: list[SettingRow],
    state: str = "unfinished",
    transcripts: Sequence[tuple[str, Sequence[Transcript]]] = (),
    findings: Findings | None = None,
) -> str:
    """Return the page of a run.

    Args:
        data: the run.
        name: its title, such as its directory's name.
        settings: the config as it is by now.
        state: what a run without an outcome is: running, killed or unfinished.
        transcripts: rollouts to read, in groups with a title; none leaves the section out.
        findings: what costs the run time, where somebody looked.

    Raises UserError when plotly is not installed.
    """
    if state not in STATES:
        raise ValueError(f"no such state: {state}")
    summary, axes = data.metrics.summary(), Axes.of(data)
    before, after = sections(data, summary, axes, settings, findings)
    groups = views(transcripts)
    figures = {f"plot-{plot.id}": plot.figure for section in (*before, *after) for plot in section.plots}
    scripts = [_own("theme.js"), plotly_js(), _own("page.js")]
    template = _templates().get_template("page.jinja")
    page = template.render(
        name=name,
        outcome=summary["outcome"],
        header=data.header,
        tiles=tiles(data, summary, state, findings),
        before=before,
        after=after,
        transcripts=groups,
        navigation=_navigation(before, after, bool(groups)),
        marks=_marks(axes),
        notes=_notes(data, axes),
        style=_own("page.css"),
        scripts=scripts,
        policy=_policy(scripts),
        figures=_as_json(figures),
        has_plots=bool(figures),
        num_steps=summary["steps"],
    )
    return page.lstrip()


@cache
def plotly_js() -> str:
    """Return the source of plotly.js.

    Raises UserError when plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError as error:
        raise UserError(
            "a report as a page needs the package plotly, which is not installed",
            remedy="Install it: pip install 'headway[report]'",
        ) from error
    return str(get_plotlyjs())


def _as_json(figures: dict[str, Any]) -> str:
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """Return the page's content security policy: these scripts, and nothing from anywhere else."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _navigation(before: list[Section], after: list[Section], has_transcripts: bool) -> list[tuple[str, str]]:
    rollouts = [("transcripts", "Rollouts")] if has_transcripts else []
    return [
        *((section.id, section.title) for section in before),
        *rollouts,
        *((section.id, section.title) for section in after),
    ]


def _marks(axes: Axes) -> list[tuple[str, str, str]]:
    """Return what the symbols in the plots mean, those that occur: (kind, symbol, meaning)."""
    kinds = {mark.kind for mark in axes.marks}
    return [(kind, SYMBOLS[kind], text) for kind, text in _MARKS.items() if kind in kinds]


def _notes(data: PageData, axes: Axes) -> list[str]:
    """Return what a reader has to know about all plots."""
    lines = [f"Derived from the journal up to {seconds(data.metrics.now)} of run time."]
    if axes.thinned:
        lines.append(
            f"Long curves (above {MAX_MEANS} points): the line is the mean of each stretch, and the pale one "
            f"behind it runs through its lowest and highest, at most {MAX_POINTS:,} points. Areas, "
            "percentiles and depth are of each stretch as a whole."
        )
    if axes.num_left_out:
        lines.append(f"{axes.num_left_out:,} marks are left out of the plots; the tables list them.")
    return lines


@cache
def _templates() -> Environment:
    # Everything is escaped unless the template says that it is the page's own.
    return Environment(
        loader=FunctionLoader(_own),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> object:
    """Return what an expression of the template shows: a text that is not the page's own, harmless."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _own(file: str) -> str:
    return resources.files("headway.telemetry.page").joinpath(file).read_text(encoding="utf-8")
