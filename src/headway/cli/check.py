"""headway check."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli.data import asked_for, config_or_data
from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from headway.runtime.preflight.checks import Looked


@click.command("check")
@config_or_data
@click.option("--strict", is_flag=True, help="Exit with 2 on a warning too.")
@click.option("--memory", is_flag=True, help="Show what takes how much memory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    config: Path | None,
    overrides: tuple[str, ...],
    strict: bool,
    memory: bool,
    as_json: bool,
    **data: str | None,
) -> int:
    r"""Check a config, its model and this machine before a run.

    CONFIG, KEY=VALUE, --model, --data and --reward are those of headway train. Each line is ok, a warning
    with its remedy (a run can start), or an error with its remedy (it cannot). The model is loaded once, and
    one rollout of each task source is run and scored with a fixed answer. Nothing is trained, and no run
    directory is made. The fast checks, which load nothing, headway train runs by itself.

    Exit code 0: a run can start, with warnings or without; 2: it cannot, or with --strict there is a warning.

    \b
    Examples:
      headway check examples/quickstart.toml
      headway check examples/quickstart.toml generator.max_running=128 --memory
      headway check examples/tiny.toml --json --strict
      headway check --model smollm2 --data train.jsonl --reward number
    """
    from headway.runtime.preflight.checks import look_at_file
    from headway.runtime.preflight.machine import estimate_for
    from headway.runtime.preflight.show import Tally, line, memory_table, to_plain

    path, given, _ = asked_for(config, overrides, **data)
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    tally = Tally()
    with until_nobody_reads():
        subject, checks = look_at_file(path, given)
        seen: list[Looked] = []
        for looked in checks:
            tally.add(looked)
            seen.append(looked)
            for finding in () if as_json else looked.findings:
                click.echo(line(looked.check.name, finding, width, colour=colour), color=colour)
        estimate = None
        if subject is not None and "memory" not in tally.not_run:
            estimate = estimate_for(subject)
        if as_json:
            click.echo(json.dumps(to_plain(seen, tally, estimate), indent=2))
            return tally.exit_code(strict=strict)
        for row in memory_table(estimate) if memory and estimate is not None else ():
            click.echo(row)
        click.echo(tally.last_line())
        return tally.exit_code(strict=strict)
    return tally.exit_code(strict=strict)
