"""The facts of the live view: a label each, and what is said of it, the most important piece first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headway.core.storage import size
from headway.telemetry.disk import KINDS
from headway.telemetry.live_state import WHERE, recent_rates
from headway.telemetry.mismatch import LARGE
from headway.telemetry.tails import Tails, ratio
from headway.telemetry.text import figures, number, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.telemetry.live_state import LiveState
    from headway.telemetry.replica_loads import Load

WAITS, KEEPS_UP = 0.15, 0.10  # wait fractions from which on generation, or up to which training, is too slow
_MOST_REPLICAS = 4  # that get a line each

GOOD, NOTABLE, BAD, QUIET, CURVE = "green", "yellow", "red", "dim", "cyan"


class Span(NamedTuple):
    """Text in one style, a name that `rich` knows; "" for none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line, or half of one.

    A piece that begins with a space goes on with the one before it, the others are parted by commas.

    Attributes:
        rank: of two facts, the lower one is left out first where there is no room.
        label: what it is about, at most ten characters.
        pieces: from the most to the least important; those that do not fit are left out.
        curve: a series to draw in the room that is left.
    """

    rank: int
    label: str
    pieces: Sequence[Span]
    curve: Sequence[float | None] = ()


def facts(state: LiveState) -> Iterator[Fact]:
    """Yield what there is to say, in reading order."""
    yield from _learning(state)
    yield from _rates(state)
    yield from _queue(state)
    yield from _rollouts(state)
    yield from _sandboxes(state)
    yield from _generators(state)
    yield from _guard(state)
    yield from _mismatch(state)
    yield from _disk(state)


def _learning(state: LiveState) -> Iterator[Fact]:
    rewards = state.rewards()
    newest = rewards[-1] if rewards else None
    yield Fact(90, "reward", [Span(number(newest, 3))], rewards)
    points = [point.reward for point in state.metrics.steps.evals if point.reward is not None]
    if points:
        pieces = [Span(number(points[-1], 3))]
        if len(points) > 1:
            change = points[-1] - points[0]
            pieces.append(Span(f"{change:+.3f}", GOOD if change > 0 else NOTABLE if change < 0 else ""))
        yield Fact(85, "eval", pieces, points)
    elif state.setting("eval", "num_tasks", 0):
        yield Fact(35, "eval", [Span("none yet", QUIET)])


def _rates(state: LiveState) -> Iterator[Fact]:
    made, used, wait = recent_rates(state.recent_steps())
    window = state.metrics.window
    if made is None:
        made = ratio(window.num_finished(), window.seconds())
    pieces = [Span(f"made {_rate(made)}/s"), Span(f"used {_rate(used)}/s")]
    if made is not None and used:
        pieces.append(Span(f"ratio {made / used:.2f}"))
    yield Fact(80, "rates", pieces)
    if wait is None:
        return
    ready = bool(state.trainer) and state.metrics.depth.signal.value >= state.batch_groups > 0
    slow, style = "neither", GOOD
    if state.setting("queue", "bound") == 0:
        slow, style = "both take turns", ""
    elif ready or wait <= KEEPS_UP:
        slow, style = "training", NOTABLE
    elif wait >= WAITS:
        slow, style = "generation", NOTABLE
    yield Fact(
        88, "bottleneck", [Span(slow, style), Span(f"waits {percent(wait)}"), Span(" of the trainer's time")]
    )


def _queue(state: LiveState) -> Iterator[Fact]:
    depth = state.metrics.depth
    groups = state.batch_groups
    bound, ahead = state.setting("queue", "bound"), state.setting("queue", "depth", -1)
    if ahead is None or ahead < 0:
        ahead = bound
    most = "" if not groups or ahead is None else f" of {groups * (ahead + 1)}"
    batch = f" of {groups}" if groups else ""
    yield Fact(
        75,
        "queue",
        [
            Span(f"{depth.all.value}{most} groups"),
            Span(f"{depth.signal.value}{batch} ready"),
            Span(" with signal"),
        ],
    )
    steps = state.recent_steps()
    counts: dict[int, int] = {}
    for step in steps:
        for age, num in step.token_staleness.items():
            counts[age] = counts.get(age, 0) + num
    mean = ratio(sum(age * num for age, num in counts.items()), sum(counts.values()))
    most_steps = max(counts, default=None)
    if most_steps is not None:
        of = "" if bound is None else f" of {bound}"
        yield Fact(70, "staleness", [Span(f"mean {number(mean, 1)}"), Span(f"max {most_steps}{of}")])


def _rollouts(state: LiveState) -> Iterator[Fact]:
    if state.solved:
        pieces = [Span(percent(sum(state.solved) / len(state.solved)))]
        if state.no_signal:
            share = sum(state.no_signal) / len(state.no_signal)
            pieces.append(Span(f"no signal {percent(share)}", NOTABLE if share > 0.8 else ""))
            pieces.append(Span(" of groups"))
        yield Fact(65, "solved", pieces)
    if state.lengths:
        tails = Tails(length for length, _ in state.lengths).summary()
        cut = sum(truncated for _, truncated in state.lengths) / len(state.lengths)
        yield Fact(
            50,
            "tokens",
            [
                Span(f"{number(tails['mean'], 0)}"),
                Span(f"p99 {number(tails['p99'], 0)}"),
                Span(f"cut off {percent(cut)}", NOTABLE if cut > 0.2 else ""),
            ],
        )
    limit = state.limit or state.setting("queue", "max_running_rollouts", 0)
    pieces = [Span(f"{len(state.flights)}{f' of {limit}' if limit else ''} rollouts")]
    pieces += [Span(f"{state.where[where]} {where}") for where in WHERE if state.where[where]]
    if state.num_eval_flights:
        pieces.append(Span(f"{state.num_eval_flights} for evaluation"))
    yield Fact(60, "in flight", pieces)


def _sandboxes(state: LiveState) -> Iterator[Fact]:
    places, lost = state.sandboxes, state.metrics.sandboxes.num_lost
    if not places.starts_s and not places.live and not places.num_waiting and not lost:
        return
    most = state.setting("sandbox", "max_live")
    pieces = [Span(f"{len(places.live)}{f' of {most}' if most else ''} live")]
    if places.starting:
        pieces.append(Span(f"{len(places.starting)} starting"))
    if places.num_waiting:
        pieces.append(Span(f"{places.num_waiting} waiting", NOTABLE))
    if lost:
        pieces.append(Span(f"{lost} lost", BAD))
    if places.starts_s:
        tails = Tails(places.starts_s).summary()
        pieces += [Span(f"start {seconds(tails['mean'])}"), Span(f"p99 {seconds(tails['p99'])}")]
    if places.calls_s:
        tails = Tails(places.calls_s).summary()
        pieces += [Span(f"call {seconds(tails['mean'])}"), Span(f"p99 {seconds(tails['p99'])}")]
    yield Fact(55, "sandboxes", pieces)


def _generators(state: LiveState) -> Iterator[Fact]:
    loads, over = state.replicas.by_name, state.metrics.outcome != "unfinished"
    if len(loads) <= _MOST_REPLICAS:
        for name, load in loads.items():
            yield Fact(45 if load.up else 92, name, _load(load, over))
        return
    told = [load for load in loads.values() if load.num_running is not None]
    up = state.replicas.num_up
    pieces = [Span(f"{up} of {len(loads)} up", "" if up == len(loads) else BAD)]
    if told and not over:
        used = [load.kv_used_fraction for load in told]
        pieces += [
            Span(f"{sum(load.num_running or 0 for load in told):,} running"),
            Span(f"{sum(load.num_waiting for load in told):,} waiting"),
            Span(f"KV {percent(min(used))} to {percent(max(used))}"),
            Span(f"{number(sum(load.tokens_per_s for load in told), 0)} tok/s"),
        ]
    yield Fact(45 if up == len(loads) else 92, "generators", pieces)


def _load(load: Load, over: bool) -> list[Span]:
    """What a replica said last, while the run goes on: it said nothing when its last work was done."""
    if not load.up:
        return [Span("lost", BAD)]
    pieces: list[Span] = []
    if load.num_running is not None and not over:
        pieces += [
            Span(f"{load.num_running:,} running"),
            Span(f"{load.num_waiting:,} waiting", NOTABLE if load.num_waiting > load.num_running else ""),
            Span(f"KV {percent(load.kv_used_fraction)}", NOTABLE if load.kv_used_fraction > 0.9 else ""),
        ]
        if load.tokens_per_s:
            pieces.append(Span(f"{number(load.tokens_per_s, 0)} tok/s"))
    return [*pieces, Span(f"version {load.number}")]


def _guard(state: LiveState) -> Iterator[Fact]:
    action, alarm = state.setting("guard", "action", "off"), state.last_alarm
    if state.guard_paused or state.setting("guard", "paused", False):
        yield Fact(93, "guard", [Span("paused", BAD), Span("no batch is released until guard.paused=false")])
    elif alarm is not None:
        num = sum(state.metrics.guard_alarms.values())
        side = "below" if alarm.value < alarm.limit else "above"
        words = f"{alarm.metric} {figures(alarm.value)} {side} {figures(alarm.limit)} at step {alarm.step}"
        yield Fact(
            78, "guard", [Span(f"{num} alarm{'s' if num > 1 else ''}", BAD), Span(words), Span(alarm.action)]
        )
    elif action != "off":
        yield Fact(25, "guard", [Span(f"{action}", QUIET), Span("no alarm", QUIET)])


def _mismatch(state: LiveState) -> Iterator[Fact]:
    steps = state.recent_steps()
    if not steps or (mean := steps[-1].metrics.get("mismatch_mean")) is None:
        return
    most = steps[-1].metrics.get("mismatch_max")
    pieces = [Span(f"{figures(mean)} nats", NOTABLE if mean > LARGE else ""), Span(f"max {figures(most)}")]
    yield Fact(77 if mean > LARGE else 22, "mismatch", pieces)


def _disk(state: LiveState) -> Iterator[Fact]:
    sizes = state.metrics.disk.newest
    if not sizes:
        return
    taken = {kind: sizes.get(f"{kind}_bytes", 0.0) for kind in KINDS}
    pieces = [Span(size(sum(taken.values())))]
    if (free := sizes.get("free_bytes")) is not None:
        pieces.append(Span(f"{size(free)} free", BAD if free < taken["checkpoints"] else ""))
    yield Fact(20, "disk", [*pieces, *(Span(f"{kind} {size(taken[kind])}") for kind in KINDS if taken[kind])])


def _rate(value: float | None) -> str:
    return number(value, 2 if value is None or value < 100 else 0)
