"""headway env list."""

from __future__ import annotations

import click

from headway.cli.output import until_nobody_reads


@click.command("list")
def command() -> int:
    r"""List the environments.

    Each with one line on what it asks of the model, and the arguments that [environment.args] may set.
    An environment of your own is named by import path, module:Class, or by file.

    \b
    Example:
      headway env list
    """
    from headway.config.arguments import argument_keys
    from headway.config.show import toml_value
    from headway.core.check import describe_type
    from headway.environments.registry import names_and_summaries

    with until_nobody_reads():
        for name, summary in names_and_summaries():
            click.echo(f"{name}: {summary}")
            if summary.startswith("cannot be used"):
                continue
            rows = [
                (
                    key.name,
                    describe_type(key.hint),
                    "required" if key.is_required else toml_value(key.default),
                    key.doc,
                )
                for key in argument_keys(name).values()
            ]
            for argument, kind, default, doc in rows:
                click.echo(f"    {argument} = {default}  ({kind})")
                click.echo(f"        {doc}")
    return 0
