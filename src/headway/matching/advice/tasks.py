"""Tasks that teach nothing: all of a group's rollouts are solved, or none.

Threshold: of the newest half of the groups at least SHARE, and twice what tasks with evenly spread solve
rates give, 1 / (N + 1) for groups of N; and that the spread of so few groups does not explain it (Wilson's
interval).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from headway.matching.advice.field import ALL_SOLVED
from headway.matching.advice.finding import Change, Figure, Finding, Gain, at_most, factor_without
from headway.matching.advice.when import when
from headway.telemetry.estimates import wilson

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading, SettledGroup

SHARE = 0.25
RECUR = 0.1  # of the tasks came before: below, one that rests would hardly have come back
MIN_GROUPS = 12
Kind = Literal["all_solved", "all_failed"]


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield one finding for each kind that is frequent."""
    groups = reading.groups
    newest = groups[len(groups) // 2 :]
    if len(newest) < MIN_GROUPS or not reading.records:
        return
    size = sum(group.num_rollouts for group in newest) / len(newest)
    even = 1.0 / (size + 1.0)
    kinds: tuple[Kind, ...] = ("all_solved", "all_failed")
    for kind in kinds:
        share = _share(newest, kind)
        low, _ = wilson(share, len(newest))
        if share < max(SHARE, 2.0 * even) or low <= even:
            continue
        yield _finding(reading, kind, share, even, newest)


def _finding(reading: Reading, kind: Kind, share: float, even: float, newest: list[SettledGroup]) -> Finding:
    solved = kind == "all_solved"
    word = "solved" if solved else "failed"
    earlier = reading.groups[: len(reading.groups) // 2]
    metric = f"rl.group.{kind}_fraction"
    evidence = (
        Figure(
            f"groups all {word}, newest half",
            share,
            "share",
            metric,
            ALL_SOLVED if solved else None,
            f"{len(newest)} groups",
        ),
        Figure("the half before", _share(earlier, kind), "share", metric),
        Figure("what evenly spread solve rates give", even, "share"),
    )
    steps = sorted({group.step for group in reading.groups})
    by_step = {step: [group for group in reading.groups if group.step == step] for step in steps}
    bare = reading.starved if reading.get("queue.drop_zero_advantage", True) else 0.0
    gain = at_most(
        (1.0 - even) * factor_without(share), bare, "tasks with evenly spread solve rates instead of these"
    )
    return Finding(
        code=f"tasks_too_{'easy' if solved else 'hard'}",
        title="Tasks are too easy: groups all solved teach nothing"
        if solved
        else "Tasks are too hard: groups all failed teach nothing",
        stake=share * max(reading.starved, 0.2),  # work lost even where the trainer is kept busy
        evidence=evidence,
        when=when(steps, [_share(by_step[step], kind) >= SHARE for step in steps]),
        change=_change(reading, solved),
        gain=gain if gain.high and gain.high >= 0.01 else Gain(),
    )


def _share(groups: list[SettledGroup], kind: Kind) -> float:
    return sum(getattr(group, kind) for group in groups) / len(groups) if groups else 0.0


def _change(reading: Reading, solved: bool) -> Change:
    size = int(reading.get("queue.group_size", 8))
    levels = reading.get("environment.args", {}).get("levels")
    now = f" (levels = {levels} now)" if levels else ""
    if solved and not _can_rest(reading):
        places = f"environment.args{now}, curriculum.levels, a further [source.NAME]"
        return Change(f"add harder tasks: {places}")
    if solved:
        return Change(
            f"add harder tasks (environment.args{now}, curriculum.levels), and let those rest that are "
            "solved again and again",
            {"curriculum.retire_after": "2"},
        )
    return Change(
        f"add easier tasks (environment.args, curriculum.levels), or larger groups: with {2 * size} rollouts "
        "a task that is solved once in so many has signal",
        {"queue.group_size": str(2 * size)} if reading.batch_rollouts % (2 * size) == 0 else {},
    )


def _can_rest(reading: Reading) -> bool:
    """Say whether retiring tasks could do anything: not where each group has another task."""
    retires = int(reading.get("curriculum.retire_after", 0))
    return not retires and reading.num_repeated >= RECUR * max(1, reading.num_offered)
