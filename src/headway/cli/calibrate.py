"""headway calibrate."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.cli.output import until_nobody_reads
from headway.core.errors import UserError


@click.command("calibrate")
@run_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="SPEC.toml",
    help="Write the SPEC into this file, which must not exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all values and their fits.")
def command(run: Path, out: Path | None, as_json: bool) -> int:
    r"""Fit a SPEC to a run: what `headway plan` needs.

    Reads the journal of RUN alone. Rollouts that were discarded, cancelled or truncated count as censored:
    they would have been at least so long. What the journal cannot tell is named, with what stands in for it.
    The SPEC that --out writes holds the run's settings too, and says above each value where it comes from.

    \b
    Examples:
      headway calibrate runs/quickstart
      headway calibrate runs/quickstart --out spec.toml
      headway calibrate runs/quickstart --json
    """
    check_run(run)
    if out is not None and out.exists():
        raise UserError("the file must not exist yet", value=str(out), remedy="Give another name")
    if out is not None and not (out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        rule = "must be in a directory that exists and can be written to"
        raise UserError(rule, key="--out", value=str(out), remedy="Make it first, or give another place")
    from headway.matching.calibrate import calibrate
    from headway.matching.calibrate_text import calibration_text, spec_text
    from headway.telemetry.journal import read_journal

    with naming(run), until_nobody_reads():
        found = calibrate(read_journal(run))
        if not found.steps:
            rule = "must be a run that has trained something: its journal has no step to fit"
            remedy = "Give a run of headway train or headway simulate that took a step"
            raise UserError(rule, value=str(run), remedy=remedy)
        if out is not None:
            out.write_text(spec_text(found, run.resolve().name), encoding="utf-8")
        click.echo(json.dumps(found.plain()) if as_json else calibration_text(found, str(run)))
        if out is not None and not as_json:
            click.echo(f"\nwritten: {out}; next: headway plan {out}")
    return 0
