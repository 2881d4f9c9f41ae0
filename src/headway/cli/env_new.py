"""headway env new."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("new")
@click.argument("name")
@click.option(
    "--in", "folder", type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write into; one of the environment's name if not given.",
)  # fmt: skip
def command(name: str, folder: Path | None) -> int:
    r"""Write an environment to begin with.

    NAME is lower-case letters, digits and dashes. Writes the environment, a config that trains the tiny model
    on it, and a test. All three work as they are.

    \b
    Examples:
      headway env new my-game
      headway env new my-game --in environments
    """
    from headway.environments.skeleton import write_skeleton

    where = folder or Path(name)
    files = write_skeleton(name, where)
    for file in files:
        click.echo(f"wrote {file}")
    click.echo(f"next: headway env check {files[0]}; headway train {files[1]}")
    return 0
