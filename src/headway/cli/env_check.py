"""headway env check."""

from __future__ import annotations

import json

import click

from headway.cli import complete
from headway.cli.arguments import full_override, overrides_argument
from headway.cli.output import until_nobody_reads


@click.command("check")
@click.argument("name", shell_complete=complete.environments)
@overrides_argument
@click.option("--strict", is_flag=True, help="Exit with 2 on a warning too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, overrides: tuple[str, ...], strict: bool, as_json: bool) -> int:
    r"""Check what Headway takes for granted of an environment.

    NAME is as for headway env try, and so is KEY=VALUE. No model is needed: a script stands in for it, which
    calls each tool once and then answers nonsense, or the answer that a task's payload declares. Checked are
    tasks (the same in any order and process, held-out ones not among the others, fast), rewards (finite, the
    declared answer is worth most), that the prompt does not say the answer, that a rollout which declares
    that it can be run again asks the same again, and that each argument is read.

    Exit code 0: it keeps the contract, with warnings or without; 2: it does not, or with --strict there is a
    warning.

    \b
    Examples:
      headway env check my_game.py
      headway env check my_game.py largest=99 --strict
      headway env check python-code sandbox.provider=bubblewrap
    """
    from headway.config.load import load_config
    from headway.environments.contract import worst
    from headway.runtime.tryout import check_contract

    fixed = (f"environment.name={json.dumps(name)}", 'model.path="tiny"')
    config = load_config(None, (*fixed, *map(full_override, overrides)))
    judged = check_contract(config)
    with until_nobody_reads():
        if as_json:
            lines = [{"what": j.what, "level": j.level, "text": j.text, "remedy": j.remedy} for j in judged]
            click.echo(json.dumps({"environment": name, "findings": lines}, indent=2))
        else:
            width = max(len(one.what) for one in judged)
            for one in judged:
                remedy = f". {one.remedy}" if one.remedy else ""
                click.echo(f"{one.level:<8}{one.what:<{width}}  {one.text}{remedy}")
    found = worst(judged)
    return 2 if found == "error" or (strict and found == "warning") else 0
