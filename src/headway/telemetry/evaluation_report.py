"""What an evaluation found, for people and for programs, and two evaluations of the same tasks compared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from headway.telemetry.estimates import Estimate, difference, pass_estimate, reward_estimate
from headway.telemetry.tails import Tails
from headway.telemetry.text import figures, number, percent, seconds
from headway.telemetry.visible import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headway.telemetry.evaluations import EvaluatedTask, Evaluation

METHOD = (
    "95 % intervals with tasks as clusters: Wilson's with an effective number of tasks for pass@k and for "
    "rewards of 0 or 1, the normal approximation with a cluster-robust error for other rewards and "
    "differences"
)
_ALL_K = 8  # up to so many rollouts a task the table shows each pass@k
_MOST_CAUSES = 5
_WIDTH = 100


def evaluation_results(
    evaluation: Evaluation, solved_reward: float, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything as plain values.

    Args:
        evaluation: what was measured.
        solved_reward: a rollout is solved from this reward on.
        about: what was measured and how, put first: subject, environment, split, temperature.
    """
    tasks = evaluation.tasks
    rollouts = [rollout for task in tasks for rollout in task.rollouts]
    measures: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for name, value in rollout.metrics.items():
            measures[name].append(value)
    by_level: dict[tuple[str, int], list[EvaluatedTask]] = defaultdict(list)
    for task in tasks:
        by_level[task.source, task.level].append(task)
    return {
        **about,
        "version": evaluation.number,
        "tasks": len(tasks),
        "rollouts_per_task": evaluation.n,
        "rollouts": len(rollouts),
        "failed": evaluation.num_failed,
        "failures": dict(sorted(evaluation.failures.items(), key=lambda item: -item[1])),
        "pass_at": _pass_at(tasks, solved_reward, range(1, evaluation.n + 1)),
        "reward": _plain(reward_estimate([task.rewards for task in tasks])),
        "tokens": Tails(rollout.num_tokens for rollout in rollouts).summary(),
        "turns": Tails(rollout.num_turns for rollout in rollouts).summary(),
        "tool_calls": Tails(rollout.num_tool_calls for rollout in rollouts).summary(),
        "truncated_fraction": _mean([float(rollout.truncated) for rollout in rollouts]),
        "measures": {name: _mean(values) for name, values in sorted(measures.items())},
        "levels": [
            {
                "source": source,
                "level": level,
                "tasks": len(members),
                "pass_at": _pass_at(members, solved_reward, sorted({1, evaluation.n})),
                "reward": _plain(reward_estimate([task.rewards for task in members])),
            }
            for (source, level), members in sorted(by_level.items())
        ],
        "wall_s": None if evaluation.ended_s is None else evaluation.ended_s - evaluation.began_s,
        "method": METHOD,
    }


def compared(first: Evaluation, second: Evaluation, solved_reward: float) -> dict[str, Any]:
    """Return the paired differences first - second over the tasks that both have scores of."""
    others = {task.task_id: task for task in second.tasks if task.rollouts}
    pairs = [(task, others[task.task_id]) for task in first.tasks if task.rollouts and task.task_id in others]
    shares = [(_share(one, solved_reward), _share(two, solved_reward)) for one, two in pairs]
    rewards = [(_mean(one.rewards) or 0.0, _mean(two.rewards) or 0.0) for one, two in pairs]
    return {
        "tasks": len(pairs),
        "pass_at_1": _plain(difference(shares)),
        "reward": _plain(difference(rewards)),
        "better": sum(one > two for one, two in rewards),
        "worse": sum(one < two for one, two in rewards),
    }


def evaluation_text(results: Mapping[str, Any]) -> str:
    """Return results as text."""
    results = cast("Mapping[str, Any]", harmless(dict(results)))
    console = Console(file=StringIO(), width=_WIDTH, color_system=None, force_terminal=False, highlight=False)
    console.print(*_head(results), "", _estimates(results), sep="\n")
    if (levels := _levels(results)) is not None:
        console.print("", levels, sep="\n")
    console.print("", *map(Text, _lines(results)), sep="\n")
    if "against" in results:
        console.print("", *_against(results["against"]), sep="\n")
    console.print("", Text(f"({results['method']})"), sep="\n")
    out = console.file
    assert isinstance(out, StringIO)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _head(results: Mapping[str, Any]) -> list[RenderableType]:
    how = "greedy" if results["temperature"] == 0 else f"temperature {results['temperature']:g}"
    each = results["rollouts_per_task"]
    return [
        Text(str(results["subject"])),
        Text(
            f"{results['tasks']} tasks of {results['environment']} ({results['split']} split), {how}, "
            f"{each} rollout{'s'[: each != 1]} a task, {seconds(results['wall_s'])}"
        ),
    ]


def _estimates(results: Mapping[str, Any]) -> Table:
    table = _table("", "value", "95 % interval", "tasks")
    for k in _shown(results["rollouts_per_task"]):
        _row(table, f"pass@{k}", results["pass_at"].get(str(k)), share=True)
    _row(table, "reward", results["reward"], share=False)
    return table


def _levels(results: Mapping[str, Any]) -> Table | None:
    levels, each = results["levels"], results["rollouts_per_task"]
    if len(levels) < 2:
        return None
    sources = any(level["source"] for level in levels)
    several = [f"pass@{each}"] if each > 1 else []
    table = _table(
        "level", *(["source"] if sources else []), "tasks", "pass@1", "interval", *several, "reward"
    )
    for level in levels:
        passed = level["pass_at"].get("1")
        cells = [str(level["level"]), *([level["source"]] if sources else []), str(level["tasks"])]
        cells += [_value(passed, share=True), _interval(passed, share=True)]
        cells += [_value(level["pass_at"].get(str(each)), share=True)] if several else []
        table.add_row(*cells, _value(level["reward"], share=False))
    return table


def _lines(results: Mapping[str, Any]) -> Iterable[str]:
    tokens, turns = results["tokens"], results["turns"]
    parts = ", ".join(f"{name} {number(tokens[name], 0)}" for name in ("p50", "p90", "max"))
    yield (
        f"tokens of a rollout: mean {number(tokens['mean'], 1)}, {parts}; turns {number(turns['mean'], 1)}; "
        f"tool calls {number(results['tool_calls']['mean'], 1)}; cut off by a length limit "
        f"{percent(results['truncated_fraction'], 1)}"
    )
    if results["measures"]:
        means = ", ".join(f"{name} {figures(value)}" for name, value in results["measures"].items())
        yield f"the environment's own measures, means: {means}"
    if results["failed"]:
        yield f"{results['failed']} rollouts failed and are not counted:"
        causes = list(results["failures"].items())
        for cause, count in causes[:_MOST_CAUSES]:
            yield f"  {count} times {cause}"
        if len(causes) > _MOST_CAUSES:
            yield f"  and {len(causes) - _MOST_CAUSES} other causes"


def _against(results: Mapping[str, Any]) -> list[RenderableType]:
    table = _table("difference", "value", "95 % interval", "tasks")
    _row(table, "pass@1", results["pass_at_1"], share=True)
    _row(table, "reward", results["reward"], share=False)
    return [
        Text(f"against {results['subject']}, task by task"),
        table,
        Text(f"better on {results['better']} tasks, worse on {results['worse']}"),
    ]


def _pass_at(tasks: Sequence[EvaluatedTask], solved_reward: float, ks: Iterable[int]) -> dict[str, Any]:
    counts = [(len(task.rollouts), task.num_solved(solved_reward)) for task in tasks]
    return {str(k): _plain(estimate) for k in ks if (estimate := pass_estimate(counts, k)) is not None}


def _shown(each: int) -> list[int]:
    if each <= _ALL_K:
        return list(range(1, each + 1))
    powers = [2**power for power in range(each.bit_length()) if 2**power < each]
    return [*powers, each]


def _row(table: Table, name: str, estimate: Mapping[str, Any] | None, *, share: bool) -> None:
    tasks = "-" if estimate is None else str(estimate["num_tasks"])
    table.add_row(name, _value(estimate, share=share), _interval(estimate, share=share), tasks)


def _value(estimate: Mapping[str, Any] | None, *, share: bool) -> str:
    value = None if estimate is None else estimate["value"]
    return percent(value, 1) if share else number(value, 3)


def _interval(estimate: Mapping[str, Any] | None, *, share: bool) -> str:
    if estimate is None or estimate["low"] is None:
        return "-"
    ends = [estimate["low"], estimate["high"]]
    return " to ".join(percent(end, 1) if share else number(end, 3) for end in ends)


def _share(task: EvaluatedTask, solved_reward: float) -> float:
    return task.num_solved(solved_reward) / len(task.rollouts)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_edge=False)
    for position, name in enumerate(names):
        table.add_column(name, justify="right" if position else "left")
    return table
