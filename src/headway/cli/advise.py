"""headway advise."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.cli.output import until_nobody_reads

MAX_ROLLOUTS = 10_000  # of a run that is simulated unasked


@click.command("advise")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all of it.")
@click.option(
    "--simulate/--quick",
    "simulates",
    default=None,
    help="Whether gains are found by simulating the run again, or by closed forms alone; by default it is "
    "simulated up to 10,000 rollouts, which takes up to a minute or two.",
)
def command(run: Path, as_json: bool, simulates: bool | None) -> int:
    r"""Say what costs a run time, and what to change.

    Findings are ranked by the part of the run's time that they explain. Each has its evidence from the
    journal of RUN, the typical range of the field where it is known, the change proposed, and what that would
    gain, with how the gain was estimated: where it can, the run is simulated again with the settings changed,
    as `headway whatif` does. docs/matching.md lists the findings and their thresholds. A run that is still
    going can be asked too.

    \b
    Examples:
      headway advise runs/quickstart
      headway advise runs/quickstart --quick
      headway advise runs/quickstart --json
    """
    from headway.matching.advice.reading import Reading
    from headway.matching.advise import advice_of
    from headway.matching.advise_text import advice_text
    from headway.telemetry.journal import read_journal
    from headway.telemetry.visible import visible

    check_run(run)
    with naming(run), until_nobody_reads():
        journal = read_journal(run)
        reading = Reading.of(journal)
        advice = advice_of(reading)
        if simulates is None:
            simulates = reading.metrics.num_rollouts <= MAX_ROLLOUTS
        if simulates and any(finding.change.settings for finding in advice.findings):
            from headway.matching.advice.simulated import simulated_gains

            advice = advice_of(reading, simulated_gains(journal))
        if as_json:
            click.echo(json.dumps({"run": str(run), **advice.to_plain()}, indent=2, allow_nan=False))
        else:
            click.echo(visible(advice_text(advice, run.resolve().name)), nl=False)
    return 0
