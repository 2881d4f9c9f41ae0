"""headway eval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import complete
from headway.cli.arguments import full_override, overrides_argument, view_option

if TYPE_CHECKING:
    from headway.telemetry.settings import Choice


@click.command("eval")
@click.argument("target", shell_complete=complete.runs)
@overrides_argument
@click.option("--step", type=click.IntRange(min=1), help="The run's checkpoint of this step, not its newest.")
@click.option(
    "--model",
    metavar="MODEL",
    help="Whose weights are measured instead of TARGET's: a model's directory or name, or a run.",
)
@click.option(
    "--env",
    metavar="NAME",
    shell_complete=complete.environments,
    help="The environment, with its default arguments; needed where TARGET is a model.",
)
@click.option(
    "-n",
    "--rollouts-per-task",
    "num_rollouts",
    metavar="N",
    type=click.IntRange(min=1),
    help="Rollouts of each task, for pass@1 to pass@N; sampled at temperature 1 where N is above 1.",
)
@click.option("--tasks", metavar="N", type=click.IntRange(min=1), help="How many tasks, at most.")
@click.option(
    "--temperature", metavar="T", type=click.FloatRange(min=0), help="Of sampling; 0 is the same as --greedy."
)
@click.option("--greedy", is_flag=True, help="The likeliest token each time; one rollout a task.")
@click.option("--split", type=click.Choice(["eval", "train"]), help="Held-out tasks, or those of training.")
@click.option(
    "--against",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Compare task by task with the newest evaluation of this run, or of what headway eval made.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; progress goes to stderr.")
@view_option
def command(
    target: str,
    overrides: tuple[str, ...],
    step: int | None,
    model: str | None,
    env: str | None,
    num_rollouts: int | None,
    tasks: int | None,
    temperature: float | None,
    greedy: bool,
    split: str | None,
    against: Path | None,
    as_json: bool,
    view: Choice | None,
) -> int:
    r"""Measure a model on an environment's tasks.

    TARGET is a config (its model before training), a run (its newest checkpoint, with the run's environment
    and settings), or a model: a directory that `headway export` wrote, any Hugging Face directory of the
    Llama and Qwen families, smollm2 or tiny. KEY=VALUE without a dot is an argument of the environment, with
    a dot a config key; what neither says is as in TARGET.

    Prints pass@1 to pass@n and the mean reward with 95 % intervals (docs/results.md says how), lengths, the
    environment's own measures, and a row for each level. It makes a run directory, runs/eval-NAME, that
    `headway rollouts`, `report` and `replay` work on.

    \b
    Examples:
      headway eval examples/quickstart.toml
      headway eval runs/quickstart
      headway eval runs/quickstart --step 10 -n 8 --tasks 32
      headway eval my-model --env python-code --greedy
      headway eval examples/quickstart.toml --model my-model --json
      headway eval runs/quickstart --against runs/eval-quickstart
    """
    if greedy and (temperature or (num_rollouts or 1) > 1):
        raise click.UsageError(
            "--greedy rollouts of a task are all alike: it goes with -n 1 and without --temperature."
        )
    from headway.config.load import placing
    from headway.runtime.evaluate import evaluate
    from headway.runtime.subject import Asked

    asked = Asked(
        target,
        tuple(map(full_override, overrides)),
        step,
        model,
        env,
        tasks,
        num_rollouts,
        0.0 if greedy else temperature,
        split,  # pyright: ignore[reportArgumentType]
    )
    with placing(None):
        return evaluate(asked, against=against, as_json=as_json, view=view)
