"""headway env try."""

import click


@click.command("try")
def command() -> int:
    r"""Run one rollout and show it turn by turn.

    \b
    Example:
      headway env try
    """
    return 0
