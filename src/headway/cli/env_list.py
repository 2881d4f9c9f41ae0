"""headway env list."""

from __future__ import annotations

import click

from headway.cli.output import until_nobody_reads


@click.command("list")
@click.argument("family", required=False)
def command(family: str | None) -> int:
    r"""List the environments.

    Each with one line on what it asks of the model, and the arguments that [environment.args] may set.
    An environment of your own is named by import path, module:Class, or by file. FAMILY, such as
    reasoning-gym, shows every environment of a family.

    \b
    Examples:
      headway env list
      headway env list reasoning-gym
    """
    from headway.config.arguments import argument_keys
    from headway.core.check import describe_type
    from headway.environments.registry import members, names_and_summaries

    with until_nobody_reads():
        for name, words in members(family) if family else ():
            click.echo(f"{name}: {words}")
        if family:
            return 0
        for name, summary in names_and_summaries():
            click.echo(f"{name}: {summary}")
            if summary.startswith("cannot be used"):
                continue
            rows = [
                (
                    key.name,
                    describe_type(key.hint),
                    "required" if key.is_required else _default(key.default),
                    key.doc,
                )
                for key in argument_keys(name).values()
            ]
            for argument, kind, default, doc in rows:
                click.echo(f"    {argument} = {default}  ({kind})")
                click.echo(f"        {doc}")
    return 0


def _default(value: object) -> str:
    from headway.config.show import toml_value

    return "not set" if value is None else toml_value(value)
