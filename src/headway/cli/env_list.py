"""headway env list."""

import click


@click.command("list")
def command() -> int:
    r"""List the environments.

    \b
    Example:
      headway env list
    """
    return 0
