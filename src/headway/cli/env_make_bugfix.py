"""headway env make bugfix."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from headway.environments.bugfix.make import Made, MakerSettings


@click.command("bugfix")
@click.argument("packages", nargs=-1)
@click.option(
    "--out", type=click.Path(path_type=Path), default="bugfix", show_default=True, help="Folder to fill."
)
@click.option(
    "--tasks", type=click.IntRange(min=1), default=100, show_default=True, help="Tasks of each package."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Sandboxes at once."
)
@click.option(
    "--several",
    type=click.FloatRange(0, 1),
    default=0.15,
    show_default=True,
    help="Share of the tasks with two or three bugs.",
)
@click.option(
    "--runner",
    type=click.Choice(["pytest", "unittest"]),
    default="pytest",
    show_default=True,
    help="What runs the packages' tests; unittest needs nothing installed.",
)
@click.option("--provider", default="local", show_default=True, help="Provider of the sandboxes.")
@click.option(
    "--recipes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Make the tasks of these recipes again, in place of drawing any.",
)
@click.option("--verify", is_flag=True, help="With --recipes: prove each task anew.")
def command(
    packages: tuple[str, ...],
    out: Path,
    tasks: int,
    seed: int,
    workers: int,
    several: float,
    runner: Literal["pytest", "unittest"],
    provider: str,
    recipes: Path | None,
    verify: bool,
) -> int:
    r"""Make bug-fixing tasks from packages.

    PACKAGES are names on the package index (toolz, or toolz==1.2.0), whose source distributions pip fetches,
    or folders. One-line bugs are drawn by the seed, and each is proven in sandboxes: tests that pass, of
    which some fail with the bug and pass without it. Written to --out: tasks.jsonl, in SWE-bench's columns,
    recipes.jsonl, from which others make the same tasks, and requirements.txt for sandbox.image. A run that
    was interrupted goes on.

    \b
    Examples:
      headway env make bugfix toolz==1.2.0 boltons==26.2.0 --tasks 100
      headway env make bugfix --recipes examples/bugfix/recipes/recipes.jsonl --verify
    """
    from headway.environments.bugfix.make import MakerSettings

    if bool(packages) == bool(recipes):
        raise click.UsageError("Name packages, or recipes: one of the two.")
    out.mkdir(parents=True, exist_ok=True)
    settings = MakerSettings(num_tasks=tasks, several=several, seed=seed, workers=workers, runner=runner)
    made = asyncio.run(_made(out, provider, settings, packages, recipes, verify))
    for one in made:
        num_functions = len({(bug.path, bug.function) for row in one.rows for bug in row.bugs})
        click.echo(f"{one.package}: {len(one.rows)} tasks in {num_functions} functions")
    click.echo(f"{sum(len(one.rows) for one in made)} tasks in {out / 'tasks.jsonl'}")
    return 0 if all(one.rows for one in made) else 1


async def _made(
    out: Path,
    provider_name: str,
    settings: MakerSettings,
    packages: tuple[str, ...],
    recipes: Path | None,
    verify: bool,
) -> list[Made]:
    from headway.environments.bugfix.make import Maker, requirements
    from headway.environments.bugfix.settings import sandbox_settings
    from headway.sandbox.leases import own_label
    from headway.sandbox.pools import make_pool, settings_of

    image = ""
    if needed := requirements(settings.runner):
        (out / "requirements.txt").write_text(needed)
        image = str(out / "requirements.txt")
    chosen = sandbox_settings(settings_of(provider_name), settings.workers, image)
    provider = make_pool(chosen, own_label("bugfix"), warm=0)
    if packages or verify:
        await provider.preflight()
    maker = Maker(out, provider, settings, click.echo)
    return await (maker.make(packages) if recipes is None else maker.rebuild(recipes, verify=verify))
