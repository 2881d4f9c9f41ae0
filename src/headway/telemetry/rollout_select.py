"""Which rollouts, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headway.core.notes import Fate
from headway.core.records import Purpose
from headway.telemetry.rollout_record import State

if TYPE_CHECKING:
    from headway.telemetry.rollout_record import RolloutRecord

Order = Literal["newest", "oldest", "worst", "best", "longest", "slowest"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What to look at; every condition that is given must hold.

    Orders: `newest` and `oldest` by their start; `worst` and `best` by reward, then advantage, scored ones
    only; `longest` by sampled tokens; `slowest` by the time from start to end, ended ones only. Ties: the
    newest first.
    """

    order: Order = "newest"
    rollouts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    purpose: Purpose | None = None
    step: int | None = None  # optimizer step that trains on it
    states: tuple[Fate | State, ...] = ()
    tasks: tuple[str, ...] = ()
    min_reward: float | None = None
    max_reward: float | None = None
    failed: bool = False  # it, or an attempt of it, failed


def select(records: Sequence[RolloutRecord], selection: Selection) -> list[RolloutRecord]:
    """Return the records that a selection means, in its order.

    `records` are in the order of their start, as the table gives them.
    """
    chosen = [record for record in reversed(records) if _fits(record, selection)]
    match selection.order:
        case "newest":
            return chosen
        case "oldest":
            return chosen[::-1]
        case "worst":
            return _by(chosen, _merit)
        case "best":
            return _by(chosen, _merit, highest=True)
        case "longest":
            return _by(chosen, lambda record: (float(record.num_tokens),), highest=True)
        case "slowest":
            return _by(chosen, _duration, highest=True)


def _fits(record: RolloutRecord, selection: Selection) -> bool:
    reward, low, high = record.reward, selection.min_reward, selection.max_reward
    return (
        (not selection.rollouts or record.rollout in selection.rollouts)
        and (not selection.groups or record.group in selection.groups)
        and (selection.purpose is None or record.purpose == selection.purpose)
        and (selection.step is None or record.step == selection.step)
        and (not selection.states or record.state in selection.states)
        and (not selection.tasks or record.task_id in selection.tasks)
        and (low is None or (reward is not None and reward >= low))
        and (high is None or (reward is not None and reward <= high))
        and (not selection.failed or record.failed)
    )


def _merit(record: RolloutRecord) -> tuple[float, ...] | None:
    return None if record.reward is None else (record.reward, record.advantage or 0.0)


def _duration(record: RolloutRecord) -> tuple[float, ...] | None:
    return None if record.duration_s is None else (record.duration_s,)


def _by(
    records: list[RolloutRecord],
    key: Callable[[RolloutRecord], tuple[float, ...] | None],
    *,
    highest: bool = False,
) -> list[RolloutRecord]:
    """Sort by a key, and leave out what has none; equal ones keep their order."""
    keyed = [(value, record) for record in records if (value := key(record)) is not None]
    keyed.sort(key=lambda pair: pair[0], reverse=highest)  # stable, reversed or not
    return [record for _, record in keyed]
