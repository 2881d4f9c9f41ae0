"""The trainer's own time: it is the bottleneck, it waits for its data, it writes weights, it is held up.

Thresholds: training-bound when it waits less than BUSY and the groups that wait for it fill a batch
or more on average, and generation stands back for it, by IDLE or more. Each other part when it takes PART
of the window or more: that much is what its removal gains, and less is within the spread of a step's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headway.matching.advice.field import MFU
from headway.matching.advice.finding import Change, Figure, Finding, Gain, at_most
from headway.matching.advice.when import when

if TYPE_CHECKING:
    from headway.matching.advice.phases import Spent
    from headway.matching.advice.reading import Reading

BUSY = 0.10
LINE = 1.0  # batches
IDLE = 0.25  # of the rollouts that are usually in flight
PART = 0.10


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield what holds for the trainer."""
    if not reading.records or not reading.phases.total.total_s:
        return
    yield from _training_bound(reading)
    yield from _data(reading)
    yield from _transfer(reading)
    yield from _evaluations(reading)


def _training_bound(reading: Reading) -> Iterator[Finding]:
    limits, signal = reading.limits, reading.summary["rl.queue.depth.signal"]["mean"]
    if limits is None or signal is None or reading.starved >= BUSY or signal < LINE * limits.batch:
        return
    phases = reading.phases
    usual, training = phases.level(0.95), phases.total.mean_running("train") or 0.0
    idle = 1.0 - training / usual if usual else 0.0
    if idle < IDLE:
        return
    computes = reading.summary["rl.trainer.compute_fraction"] or 0.0
    evidence = [
        Figure("the trainer computes", computes, "share", "rl.trainer.compute_fraction"),
        Figure(
            "groups in line for it, mean",
            signal,
            "count",
            "rl.queue.depth.signal",
            note=f"a batch has {limits.batch}",
        ),
    ]
    evidence.append(
        Figure(
            "rollouts in flight meanwhile, of the usual number",
            1.0 - idle,
            "share",
            note=f"{training:,.0f} of {usual:,.0f}",
        )
    )
    if (mfu := reading.summary["rl.trainer.mfu"]) is not None:
        note = reading.summary["rl.trainer.mfu_convention"]
        evidence.append(Figure("MFU", mfu, "share", "rl.trainer.mfu", MFU, note))
    gain = Gain(
        1.0 / (1.0 - 0.1 * computes) - 1.0, None, "closed form", "for each tenth off a step's computing"
    )
    yield Finding(
        code="training_bound",
        title="Training is the bottleneck: rollouts wait for the trainer",
        stake=computes * idle,
        evidence=tuple(evidence),
        when=_when(reading, lambda spent: spent.starved_s < BUSY * spent.total_s),
        change=Change(
            "move machines from the generator to the trainer, give it more ranks (trainer.ranks) or bigger "
            "passes (trainer.micro_batch_tokens); less queue.depth costs nothing, and tokens are fresher"
        ),
        gain=gain,
    )


def _data(reading: Reading) -> Iterator[Finding]:
    total = reading.phases.total
    share = reading.phases.share(total.handover_s)
    if share < PART:
        return
    mean = total.handover_s / len(reading.records)
    yield Finding(
        code="data_loading",
        title="Batches take long to reach the trainer",
        stake=share,
        evidence=(
            Figure("of the time a batch was on its way or loaded", share, "share"),
            Figure("a batch, mean", mean, "seconds"),
        ),
        when=_when(reading, lambda spent: spent.handover_s >= PART * spent.total_s),
        change=Change(
            "load ahead (queue.stream), shorter batches, or faster storage for payloads",
            {"queue.stream": "true"},
        ),
        gain=Gain(
            1.0 / (1.0 - share) - 1.0,
            None,
            "closed form",
            "loading hidden behind the wait or the step before",
        ),
    )


def _transfer(reading: Reading) -> Iterator[Finding]:
    phases, summary = reading.phases, reading.summary
    publishes = phases.share(phases.total.state_s["publish"])
    num = max(1, len(reading.replicas.by_name))
    paused = phases.share(phases.total.pause_s) / num
    every, depth = int(reading.get("queue.publish_every", 1)), reading.depth
    versions = max(1, len(reading.records) // every)
    superseded = summary["rl.weights.superseded"] / versions
    evidence = (
        Figure("of the time the trainer writes versions", publishes, "share", "rl.trainer.publish_fraction"),
        Figure("of the time a replica stands still for them", paused, "share", "rl.weights.pause_s"),
        Figure("versions that no replica took up, of all", superseded, "share", "rl.weights.superseded"),
    )
    more = min(depth + 1, 2 * every)
    can = more > every
    rare = Change(f"publish every {more} steps", {"queue.publish_every": str(more)})
    if publishes >= PART:
        left = publishes * every / more if can else 0.0
        yield Finding(
            code="weight_transfer",
            title="Writing weights holds the trainer up",
            stake=publishes,
            evidence=(
                evidence[0],
                Figure(
                    "one version, mean",
                    summary["rl.weights.publish_s"]["mean"],
                    "seconds",
                    "rl.weights.publish_s",
                ),
            ),
            when=_when(reading, lambda spent: spent.state_s["publish"] >= PART * spent.total_s),
            change=rare
            if can
            else Change("train LoRA factors, or publish to shared memory or over a faster link"),
            gain=Gain(1.0 / (1.0 - publishes + left) - 1.0, None, "closed form", "so much less of its time"),
            caution="Generators sample from older weights." if can else "",
        )
    if paused >= PART or superseded >= 2 * PART:
        yield Finding(
            code="updates_too_often",
            title="Weights are updated more often than it pays",
            stake=max(publishes, paused * max(reading.starved, 0.1), 0.03),
            evidence=(
                *evidence[1:],
                Figure(
                    "one update, mean",
                    summary["rl.weights.pause_s"]["mean"] or 0.0,
                    "seconds",
                    "rl.weights.pause_s",
                ),
            ),
            when=_when(reading, lambda spent: spent.pause_s >= PART * num * spent.total_s)
            if paused >= PART
            else "",
            change=rare
            if can
            else Change(
                "publish less often: it takes a deeper queue",
                {"queue.bound": str(depth + 1), "queue.publish_every": str(depth + 2)},
            ),
            gain=at_most(
                1.0 / (1.0 - paused * (1.0 - every / (more if can else every + 1))),
                reading.starved,
                "so much less of the replicas' time",
            ),
            caution="Generators sample from older weights, and what they may make of one version is bounded.",
        )


def _evaluations(reading: Reading) -> Iterator[Finding]:
    phases = reading.phases
    share = phases.share(phases.total.eval_s)
    if share < PART:
        return
    yield Finding(
        code="evaluations",
        title="Evaluations hold training up",
        stake=share,
        evidence=(
            Figure("of the time the trainer waits beside an evaluation", share, "share"),
            Figure("evaluations", phases.num_eval, "count", "rl.eval.num_evaluations"),
        ),
        when=_when(reading, lambda spent: spent.eval_s >= PART * spent.total_s),
        change=Change(
            "evaluate less often or on fewer tasks: eval.every_steps, eval.num_tasks, eval.max_share"
        ),
        gain=Gain(1.0 / (1.0 - share) - 1.0, None, "closed form", "none while training"),
    )


def _when(reading: Reading, holds: Callable[[Spent], bool]) -> str:
    steps = reading.phases.steps
    numbers = sorted(steps)
    return when(numbers, [holds(steps[number]) for number in numbers])
