"""Generator and trainer take turns: by design (bound 0), or although the run is configured asynchronous.

Threshold: at least SIDE of the time is each side's alone, so that working side by side would gain as much.
Asynchronous but serial: while the trainer computes, fewer than OVERLAP of the rollouts are being generated
that are when it waits; side by side the two are about as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.matching.advice.finding import Change, Figure, Finding, Gain, factor_without
from headway.matching.advice.when import when

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

SIDE = 0.15
OVERLAP = 0.15


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield the finding, if it holds."""
    phases, bound = reading.phases, reading.get("queue.bound")
    starved = reading.starved
    computes = phases.share(phases.total.state_s["train"])
    waiting, training = (phases.total.mean_running(state) for state in ("wait", "train"))
    if bound is None or min(starved, computes) < SIDE:
        return
    if waiting is None or training is None or not waiting:
        return
    overlap = training / waiting
    if bound and overlap >= OVERLAP:
        return
    numbers = sorted(phases.steps)
    serial = [
        (phases.steps[n].mean_running("train") or 0.0)
        < OVERLAP * (phases.steps[n].mean_running("wait") or 0.0)
        for n in numbers
    ]
    evidence = (
        Figure("rollouts in flight while the trainer computes, of those while it waits", overlap, "share"),
        Figure("the trainer computes", computes, "share", "rl.trainer.compute_fraction"),
        Figure("the trainer waits for rollouts", starved, "share", note="evaluations left out"),
    )
    change, caution = _change(reading, int(bound))
    gain = _gain(reading, starved, change)
    yield Finding(
        code="serial" if bound else "synchronous",
        title="Configured asynchronous, but generator and trainer take turns"
        if bound
        else "Synchronous: generator and trainer take turns",
        stake=starved,
        evidence=evidence,
        when=when(numbers, serial),
        change=change,
        gain=gain,
        caution=caution,
    )


def _gain(reading: Reading, starved: float, change: Change) -> Gain:
    """Return between the longer side alone, and as many batches at once as the new depth allows.

    The second takes a generator that makes them as fast as one, so it holds where its slots are half empty.
    """
    longer = 1.0 / max(starved, 1.0 - starved) - 1.0
    depth = int(change.settings.get("queue.depth", change.settings.get("queue.bound", "1")))
    used = reading.slots_used
    if used is None or used * (depth + 1) <= 1.0:
        most = min((depth + 1) / starved, factor_without(starved)) - 1.0
    else:
        most = min(max(1.0, 1.0 / used) / starved, factor_without(starved)) - 1.0
    basis = "the longer side instead of both in turn; or as many batches at once as depth and slots allow"
    return Gain(max(longer, most), min(longer, most), "closed form", basis)


def _change(reading: Reading, bound: int) -> tuple[Change, str]:
    old = "Trained tokens are up to {} steps old."
    if not bound:
        return Change(
            "let generation run one step ahead", {"queue.bound": "1"}
        ), "Trained tokens are up to one step old."
    if reading.depth < bound:
        change = Change("let generation run as far ahead as the bound allows", {"queue.depth": str(bound)})
        return change, old.format(bound)
    if int(reading.get("queue.publish_every", 1)) > 1:
        return Change(
            "publish every version: generation stands still for want of one", {"queue.publish_every": "1"}
        ), ""
    most = int(reading.get("queue.max_running_rollouts", 0))
    if most and most < 2 * reading.batch_rollouts:
        more = 2 * reading.batch_rollouts
        return Change("more rollouts in flight than one batch", {"queue.max_running_rollouts": str(more)}), ""
    change = Change("let generation run one step further ahead", {"queue.bound": str(bound + 1)})
    return change, old.format(bound + 1)
