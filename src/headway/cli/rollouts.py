"""headway rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from headway.cli.arguments import check_run, naming, run_argument
from headway.cli.output import until_nobody_reads
from headway.core.errors import UserError
from headway.core.near import nearest
from headway.core.notes import Fate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core.records import Purpose
    from headway.telemetry.rollout_record import RolloutRecord, State
    from headway.telemetry.rollout_select import Order, Selection

_TABLE_LIMIT, _SHOW_LIMIT = 20, 3
_WANTED = {"slowest": ("time", "mostly"), "worst": ("why",), "best": ("why",)}
_STATES = ("running", "scoring", "scored", "queued", "training")
_ORDERS = {
    "newest": "newest first",
    "oldest": "in the order in which they started",
    "worst": "worst first",
    "best": "best first",
    "longest": "longest first",
    "slowest": "slowest first",
}


def _order(name: str, text: str) -> Any:
    return click.option(f"--{name}", "order", flag_value=name, help=text)


@click.command("rollouts")
@run_argument
@_order("worst", "Lowest reward first.")
@_order("best", "Highest reward first.")
@_order("longest", "Most sampled tokens first.")
@_order("slowest", "Longest time from start to score first.")
@click.option("--rollout", "rollouts", multiple=True, metavar="ID", help="Only this one, as a transcript.")
@click.option("--group", "groups", multiple=True, metavar="ID", help="Only this group, as transcripts.")
@click.option("--train", "purpose", flag_value="train", help="Only rollouts to train on.")
@click.option("--eval", "purpose", flag_value="eval", help="Only rollouts of evaluations.")
@click.option("--step", type=click.IntRange(min=1), help="Only those that this optimizer step trained.")
@click.option(
    "--fate",
    "fates",
    multiple=True,
    type=click.Choice([*get_args(Fate), *_STATES]),
    metavar="FATE",
    help="Only those that ended so, such as trained, filtered, stale; or are running, scoring, ...",
)
@click.option("--failed", is_flag=True, help="Only those that failed, or an attempt of which did.")
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Only attempts at this task.")
@click.option("--min-reward", type=float, metavar="R", help="Only those scored R or higher.")
@click.option("--max-reward", type=float, metavar="R", help="Only those scored R or lower.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most so many; 0 for all.  [default: {_TABLE_LIMIT}, with --show {_SHOW_LIMIT}, "
    "of groups and for files all]",
)
@click.option("--show", is_flag=True, help="Print transcripts instead of the table.")
@click.option("--full", is_flag=True, help="Shorten nothing in transcripts.")
@click.option("--logprobs", is_flag=True, help="Print the log-prob of each sampled token, too.")
@click.option("--jsonl", metavar="FILE", help="Write them as JSON lines; - for standard output.")
@click.option("--parquet", metavar="FILE", help="Write them as a Parquet file.")
def command(
    run: Path,
    order: str | None,
    rollouts: tuple[str, ...],
    groups: tuple[str, ...],
    purpose: str | None,
    step: int | None,
    fates: tuple[str, ...],
    failed: bool,
    tasks: tuple[str, ...],
    min_reward: float | None,
    max_reward: float | None,
    limit: int | None,
    show: bool,
    full: bool,
    logprobs: bool,
    jsonl: str | None,
    parquet: str | None,
) -> int:
    r"""Look into the rollouts of a run.

    RUN is the directory of a run that goes on, was killed, or has ended. Shows a table, transcripts, or
    writes files. Without options the newest rollouts, one a line: reward and advantage, sampled tokens,
    the step that trained it and the age of its oldest token there, its fate, where most of its time went,
    and the first reason of its reward, cut to a terminal's width and whole in a pipe. A transcript
    shows every token as text: what the environment wrote is dim, what the policy sampled in colour or between
    [[ and ]], with policy version and log-probs. docs/rollouts.md describes the files.

    \b
    Examples:
      headway rollouts runs/quickstart --worst
      headway rollouts runs/quickstart --slowest --eval --limit 5 --show
      headway rollouts runs/quickstart --group t000012
      headway rollouts runs/quickstart --rollout t000012.3 --logprobs
      headway rollouts runs/quickstart --failed
      headway rollouts runs/quickstart --step 7 --jsonl step7.jsonl
      headway rollouts runs/quickstart --min-reward 1 --train --parquet solved.parquet
    """
    check_run(run)
    from headway.telemetry.rollout_select import Selection, select
    from headway.telemetry.rollout_table import rollout_table

    with naming(run), until_nobody_reads():
        records = rollout_table(run)
        _check_names(records, "--rollout", rollouts, {record.rollout for record in records})
        _check_names(records, "--group", groups, {record.group for record in records})
        _check_names(records, "--task", tasks, {record.task_id for record in records})
        selection = Selection(
            order=cast("Order", order or ("oldest" if groups or jsonl or parquet else "newest")),
            rollouts=rollouts,
            groups=groups,
            purpose=cast("Purpose | None", purpose),
            step=step,
            states=cast("tuple[Fate | State, ...]", fates),
            tasks=tasks,
            min_reward=min_reward,
            max_reward=max_reward,
            failed=failed,
        )
        found = select(records, selection)
        if jsonl is not None or parquet is not None:
            _write(run, found[: limit or None], jsonl, parquet)
            return 0
        one = bool(rollouts or groups)
        transcripts = show or full or logprobs or one
        if limit is None:
            limit = 0 if one else _SHOW_LIMIT if transcripts else _TABLE_LIMIT
        shown = found[: limit or None]
        if transcripts:
            _show(run, shown, full=full, logprobs=logprobs)
        else:
            _print_table(shown, wanted=_WANTED.get(order or "", ()))
        _say_how_many(len(shown), len(found), len(records), selection, transcripts=transcripts)
    return 0


def _check_names(
    records: Sequence[RolloutRecord], option: str, given: Sequence[str], known: set[str]
) -> None:
    what = option.removeprefix("--")
    for name in given:
        if name not in known:
            near = nearest(name, known, cutoff=0.0)
            raise UserError(
                f"must be a {what} of this run, which has {len(records):,} rollouts so far",
                value=name,
                remedy=f"The nearest is {near}; `headway rollouts RUN` lists them",
                key=option,
            )


def _write(run: Path, records: Sequence[RolloutRecord], jsonl: str | None, parquet: str | None) -> None:
    from headway.telemetry.rollout_files import write_jsonl, write_parquet
    from headway.telemetry.rollout_rows import rows
    from headway.telemetry.transcript import fetch_payload

    for target, write in ((jsonl, write_jsonl), (parquet, write_parquet)):
        if target is None:
            continue
        num_missing = 0

        def all_rows() -> Any:
            nonlocal num_missing
            for record in records:
                payload = fetch_payload(run, record)
                num_missing += isinstance(payload, str)
                yield from rows(run.resolve().name, record, payload)

        num_rows = write(all_rows(), target)
        without = f", {num_missing:,} of them without tokens" if num_missing else ""
        where = "standard output" if target == "-" else target
        click.echo(f"{len(records):,} rollouts{without}: {num_rows:,} rows written to {where}", err=True)


def _show(run: Path, records: Sequence[RolloutRecord], *, full: bool, logprobs: bool) -> None:
    from headway.runtime.transcripts import transcripts_of
    from headway.telemetry.terminal import console
    from headway.telemetry.transcript_text import TranscriptWriter

    screen = console()
    writer = TranscriptWriter(marks=screen.color_system is None, full=full, width=screen.width)
    for index, item in enumerate(transcripts_of(run, records, logprobs=logprobs)):
        if index:
            screen.print()
        for line in writer.lines(item):
            screen.print(line)


def _print_table(records: Sequence[RolloutRecord], wanted: Sequence[str]) -> None:
    from headway.telemetry.rollout_list import table_lines
    from headway.telemetry.terminal import console

    if not records:
        return
    screen = console()
    head, *lines = table_lines(records, screen.width if screen.is_terminal else None, wanted)
    screen.print(head, style="bold")
    for record, line in zip(records, lines, strict=True):
        screen.print(line, style="red" if record.failed else None)


def _say_how_many(
    num_shown: int, num_found: int, num_all: int, selection: Selection, *, transcripts: bool
) -> None:
    """Say on standard error what there is beyond what was printed."""
    if not num_found:
        click.echo(f"none of the run's {num_all:,} rollouts is so", err=True)
        return
    some, every = num_found < num_all, f"{num_all:,} rollouts"
    order = _ORDERS[selection.order]
    if num_shown < num_found:
        what = f"{num_found:,} rollouts that are so ({num_all:,} in all)" if some else every
        more = "--limit N shows more, 0 all" + "; --show what they said" * (not transcripts)
        click.echo(f"{num_shown:,} of {what}, {order}; {more}", err=True)
    elif not transcripts:
        click.echo(f"{num_found:,} of {every}, {order}" if some else f"{every}, {order}", err=True)
