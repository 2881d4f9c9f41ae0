"""headway export."""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli.arguments import check_run, naming, run_argument


@click.command("export")
@run_argument
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--step", type=click.IntRange(min=1), help="The checkpoint of this step; the newest if not given."
)
@click.option(
    "--merged/--adapter",
    "merged",
    default=True,
    help="All weights, LoRA factors merged in (the default); or a PEFT adapter to load on the base model.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Type of the stored weights: float32 is exact, the others are half the size.",
)
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="Where the base model is now, if not where the run found it.",
)
@click.option("--force", is_flag=True, help="Replace a model that is in DIR.")
def command(
    run: Path, directory: Path, step: int | None, merged: bool, dtype: str, base: Path | None, force: bool
) -> int:
    r"""Write a run's trained model for transformers.

    Takes the newest checkpoint of RUN, which may be going on, and writes to DIR: the weights as safetensors,
    config, tokenizer and chat template of the base model, and a model card with what the run knows of itself.
    DIR must not exist, or be empty; it is written whole or not at all. It is also a model.path for
    `headway train`, and what `headway eval` takes.

    \b
    Examples:
      headway export runs/quickstart my-model
      headway export runs/quickstart my-model --dtype bfloat16 --force
      headway export runs/quickstart my-adapter --adapter
      headway export runs/quickstart step10 --step 10
    """
    check_run(run)
    from headway.runtime.export import export

    with naming(run):
        found = export(
            run,
            directory,
            step=step,
            form="merged" if merged else "adapter",
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            base=base,
            force=force,
        )
    click.echo(f"step {found} of {run} is in {directory}")
    return 0
