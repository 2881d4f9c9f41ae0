"""headway env install."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("install")
@click.argument("package")
@click.option(
    "--locked",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Install the exact versions of this file.",
)
@click.option(
    "--lock",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the exact versions that were installed into this file.",
)
@click.option(
    "--with", "extra", multiple=True, metavar="REQUIREMENT", help="Install this too; may be repeated."
)
@click.option("--force", is_flag=True, help="Install anew what is installed already.")
def command(package: str, locked: Path | None, lock: Path | None, extra: tuple[str, ...], force: bool) -> int:
    r"""Install a package made for verifiers.

    PACKAGE is a name that pip finds, NAME@VERSION, or the path of a folder or wheel. It gets a virtual
    environment of its own in Headway's cache, so that nothing it requires meets what Headway or another
    package does. It is the environment verifiers:NAME then.

    \b
    Examples:
      headway env install sophistry-bench-sprint
      headway env install sophistry-bench-sprint@0.1.6 --lock sophistry.lock
      headway env install sophistry-bench-sprint --locked sophistry.lock --force
      headway env install ./my_taskset
    """
    from headway.environments.verifiers.install import install
    from headway.environments.verifiers.lock import differing, lock_text, read_lock
    from headway.environments.verifiers.places import already

    one = None if force else already(package)
    if one is not None and locked is not None and differing(read_lock(locked), one.lock):
        one = None
    if one is None:
        one = install(package, locked=locked, extra=extra, say=click.echo)
        click.echo(f"installed verifiers:{one.name} {one.version}, with verifiers {one.verifiers}")
    else:
        click.echo(f"verifiers:{one.name} {one.version} is installed; --force installs it anew")
    if lock is not None:
        lock.write_text(lock_text(one), encoding="utf-8")
        click.echo(f"wrote {lock}, {len(one.lock)} packages")
    return 0
