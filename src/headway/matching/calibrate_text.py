"""A calibration as text for people, and as a SPEC.toml that says where each value comes from."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from headway.config.compared import NOT_SET, compared
from headway.config.show import toml_value
from headway.core.errors import UserError
from headway.matching.model_config import find_model

if TYPE_CHECKING:
    from headway.matching.calibration import Calibration, Parameter

SECTIONS = ("workload", "fleet", "timings")
TINY = 1e-12  # of rounding, in any unit
_WIDTH = 100
_LEFT_OUT = ("run.dir", "run.name")  # of the run's config: a plan writes no run


def calibration_text(calibration: Calibration, name: str) -> str:
    """Return a short answer: what was found, how well, and what the journal cannot tell."""
    lines = [f"{name}: {calibration.steps:,} steps; times are in seconds, lengths in tokens"]
    for warning in calibration.warnings:
        lines += textwrap.wrap(f"Warning: {warning}", _WIDTH, subsequent_indent="  ")
    known = [one for one in calibration.parameters if one.is_identified]
    for section in SECTIONS:
        rows = [one for one in known if one.key.startswith(f"{section}.")]
        if rows:
            lines += ["", f"[{section}]", *(_row(one) for one in rows)]
    unknown = [one for one in calibration.parameters if not one.is_identified]
    if unknown:
        lines += ["", "The journal cannot tell:"]
        for why in dict.fromkeys(one.stands_in for one in unknown):
            keys = ", ".join(one.key for one in unknown if one.stands_in == why)
            lines += textwrap.wrap(f"{keys}: {why}", _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def spec_text(calibration: Calibration, origin: str) -> str:
    """Return a SPEC.toml: the run's own settings where they differ from the defaults, and what was fitted.

    Args:
        calibration: what was found.
        origin: the run, for the first line.
    """
    parts = [
        f"# Fitted to {origin} by headway calibrate, {calibration.steps:,} steps. Predictions hold for runs "
        "like it.",
        *(
            f"# Warning: {line}"
            for warning in calibration.warnings
            for line in textwrap.wrap(warning, _WIDTH)
        ),
        "",
        "# ---- the run's settings, where they differ from the defaults",
        *_config_lines(calibration),
        "",
        "# ---- what was measured: the source and the fit of each value above it",
    ]
    for section in SECTIONS:
        rows = [
            one for one in calibration.parameters
            if one.key.startswith(f"{section}.") and not one.key.startswith("workload.drift.")
        ]  # fmt: skip
        drift = [one for one in calibration.parameters if one.key.startswith(f"{section}.drift.")]
        if not rows:
            continue
        parts += ["", f"[{section}]"]
        for one in rows:
            parts += _comment(one)
            key = one.key.partition(".")[2]
            parts.append(
                f"# {key} is not set" if one.value is None else f"{key} = {toml_value(_rounded(one.value))}"
            )
        if drift:
            for one in drift:
                parts += _comment(one, f"{one.key.rpartition('.')[2]}: ")
            table = {one.key.rpartition(".")[2]: _rounded(one.value) for one in drift}
            parts.append(f"drift = {toml_value(table)}")
    return "\n".join(parts) + "\n"


def _rounded(value: object) -> object:
    """Return a float with six digits: the fits know no more."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _row(parameter: Parameter) -> str:
    value = parameter.value
    value = 0.0 if isinstance(value, float) and abs(value) < TINY else value
    shown = f"{value:.4g}" if isinstance(value, float) else str(value).lower()
    key = parameter.key.partition(".")[2]
    return f"  {key:<22} {shown:>10}  {parameter.fit}".rstrip()


def _is_known(model: str) -> bool:
    try:
        find_model(model)
    except UserError:
        return False
    return True


def _comment(parameter: Parameter, before: str = "") -> list[str]:
    text = f"Stands in: {parameter.stands_in}" if parameter.stands_in else parameter.source
    text = f"{before}{text} ({parameter.fit})" if parameter.fit else f"{before}{text}"
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _config_lines(calibration: Calibration) -> list[str]:
    sections: dict[str, list[str]] = {}
    for row in compared(calibration.config):
        if not row.differs or row.value == NOT_SET or row.key in _LEFT_OUT:
            continue
        parts = row.key.split(".")
        depth = 2 if parts[0] == "source" else 1
        section, key = ".".join(parts[:depth]), ".".join(parts[depth:])
        line = f"{key} = {row.value}"
        if row.key == "model.path" and not _is_known(str(calibration.config["model"]["path"])):
            line = f"# {line} is not known here; what was measured needs no numbers of the model"
        sections.setdefault(section, []).append(line)
    lines: list[str] = []
    for section, rows in sections.items():
        lines += ["", f"[{section}]", *rows]
    return lines
