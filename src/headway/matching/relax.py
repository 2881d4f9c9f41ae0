"""What would help: the fluid model once more with one resource a quarter better.

The resource whose relaxation gains most is a candidate for the bottleneck; `bottleneck` names one. It is
decided by what limits the flow, not by the largest gain alone: faster decoding always helps a run that waits
for rollouts, even where its engines are half empty and more rollouts in flight would cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headway.matching.contracts import EngineModel, TrainerModel
from headway.matching.fluid import Fluid

if TYPE_CHECKING:
    from headway.matching.build import Models
    from headway.matching.flow import Flow
    from headway.matching.sampled import Drawn, Sample
    from headway.matching.spec_load import Spec

FACTOR = 1.25
_LIKE_NONE = 0.05  # of the trainer's time


@dataclass(frozen=True, slots=True)
class QuickEngine:
    """An engine with some of its speeds or room multiplied."""

    engine: EngineModel
    decode: float = 1.0
    prefill: float = 1.0
    room: float = 1.0

    @property
    def max_running(self) -> int:
        """Slots, multiplied."""
        return max(1, round(self.engine.max_running * self.room))

    @property
    def kv_tokens(self) -> int:
        """Room for keys and values, multiplied."""
        return round(self.engine.kv_tokens * self.room)

    @property
    def offload_tokens(self) -> int:
        """The engine's own."""
        return self.engine.offload_tokens

    @property
    def separate_prefill(self) -> bool:
        """The engine's own."""
        return self.engine.separate_prefill

    @property
    def prefill_lines(self) -> int:
        """The engine's own."""
        return self.engine.prefill_lines

    @property
    def tokens_per_iteration(self) -> float:
        """The engine's own."""
        return self.engine.tokens_per_iteration

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        """Return the engine's seconds, divided."""
        return self.engine.decode_s(num_running, resident_tokens) / self.decode

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        """Return the engine's seconds, divided."""
        return self.engine.prefill_s(num_tokens, context_tokens) / self.prefill


@dataclass(frozen=True, slots=True)
class QuickTrainer:
    """A trainer whose steps, or whose weight transfer, are faster; `rows` stands for a larger batch."""

    trainer: TrainerModel
    step: float = 1.0
    transfer: float = 1.0
    rows: float = 1.0

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        """Return the trainer's seconds, divided."""
        more = self.rows
        return (
            self.trainer.step_s(round(num_rows * more), round(num_tokens * more), sum_squares * more)
            / self.step
        )

    @property
    def load_s(self) -> float:
        """The trainer's own."""
        return self.trainer.load_s

    @property
    def publish_s(self) -> float:
        """The trainer's, divided."""
        return self.trainer.publish_s / self.transfer

    @property
    def apply_s(self) -> float:
        """The trainer's, divided."""
        return self.trainer.apply_s / self.transfer

    @property
    def save_s(self) -> float:
        """The trainer's own."""
        return self.trainer.save_s


def gains(spec: Spec, models: Models, sample: Sample, base: Flow) -> dict[str, float]:
    """Return the gain in trained rollouts/s of each resource when it is a quarter better."""
    scheduler = spec.scheduler
    queue = scheduler.queue
    deeper = max(queue.max_depth + 1, round(queue.max_depth * FACTOR))
    found: dict[str, float] = {}

    def look(name: str, fluid: Fluid) -> None:
        found[name] = fluid.solve().effective / base.effective - 1.0

    engine, trainer = models.engine, models.trainer
    look("trainer", Fluid(spec, replace(models, trainer=QuickTrainer(trainer, step=FACTOR)), sample))
    look("weights", Fluid(spec, replace(models, trainer=QuickTrainer(trainer, transfer=FACTOR)), sample))
    look("decode", Fluid(spec, replace(models, engine=QuickEngine(engine, decode=FACTOR)), sample))
    look("prefill", Fluid(spec, replace(models, engine=QuickEngine(engine, prefill=FACTOR)), sample))
    look("room", Fluid(spec, replace(models, engine=QuickEngine(engine, room=FACTOR)), sample))
    deep = replace(queue, depth=deeper, bound=max(queue.bound, deeper))
    look("depth", Fluid(replace(spec, scheduler=replace(scheduler, queue=deep)), models, sample))
    for name, changes in _SAMPLES.items():
        if any(getattr(drawn, field) for drawn in sample.rollouts for field in changes):
            look(name, Fluid(spec, models, _scaled(sample, changes)))
    if spec.workload.uses_sandbox:
        more = replace(scheduler, max_sandboxes=round(scheduler.max_sandboxes * FACTOR))
        look("sandboxes", Fluid(replace(spec, scheduler=more), models, sample))
    return found


_SAMPLES = {"tools": ("tool_s", "idle_token_s"), "scoring": ("score_s",)}


def _scaled(sample: Sample, fields: tuple[str, ...]) -> Sample:
    def scale(drawn: Drawn) -> Drawn:
        return replace(drawn, **{name: getattr(drawn, name) / FACTOR for name in fields})

    return replace(sample, groups=[[scale(drawn) for drawn in group] for group in sample.groups])


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The one thing that holds the run back."""

    name: str
    why: str  # with its evidence
    remedy: str


_CAPS = {
    "kv": (
        "the engines' memory for keys and values is full",
        'hardware.generator.kv = "fp8", more accelerators a replica, or shorter contexts',
    ),
    "setting": ("every slot of the engines is taken (max_running)", "raise hardware.generator.max_running"),
    "max_running_rollouts": ("queue.max_running_rollouts holds rollouts back", "raise it, or set it to 0"),
    "sandboxes": (
        "all sandboxes are in use (sandbox.max_live)",
        "raise sandbox.max_live",
    ),
    "sandbox_starts": (
        "sandboxes cannot be started fast enough",
        "raise the provider's limit on creates, or sandbox.max_starting; keep sandboxes warm",
    ),
    "prefill": (
        "the machines that prefill are never idle",
        "raise hardware.generator.prefill_count, or keep conversations in the cache (kv_offload_gb)",
    ),
}


def bottleneck(flow: Flow, found: dict[str, float], means: dict[str, float]) -> Bottleneck:
    """Return the bottleneck by name.

    Args:
        flow: the steady state.
        found: what relaxing each resource gains.
        means: mean seconds of a rollout's parts: decode, prefill, tool, start, score, wait; and `group`, the
            mean life of a group, and `rollout`, of a rollout.
    """
    if flow.wait < _LIKE_NONE:
        why = f"training is the slower half: it waits {flow.wait:.0%} of its time"
        if flow.blocked > 0.005:
            why += f", and generation could make {1 / (1 - flow.blocked) - 1:.0%} more"
        return Bottleneck("trainer", why, "move accelerators to the trainer, or raise its efficiency")
    if flow.capped_by in _CAPS:
        why, remedy = _CAPS[flow.capped_by]
        return Bottleneck(flow.capped_by, f"generation is the slower half, and {why}", remedy)
    if flow.lost_to_zero > 0.5:
        why = f"{flow.zero:.0%} of the groups carry no signal, so that most of what is made is not trained"
        return Bottleneck("zero_advantage", why, "choose harder or easier tasks (curriculum.levels)")
    parts = {name: means[name] for name in ("decode", "prefill", "tool", "start", "score")}
    name, most = max(parts.items(), key=lambda item: item[1])
    share = most / max(1e-9, sum(parts.values()))
    if name != "decode" and share > 0.5:
        remedies = {
            "prefill": "give it machines of its own, keep conversations in the cache, or shorten prompts",
            "tool": "make tool calls faster",
            "start": "start sandboxes faster, or keep them warm",
            "score": "make scoring faster",
        }
        words = {"prefill": "prefills", "tool": "tool calls", "start": "sandbox starts", "score": "scoring"}
        why = f"generation is the slower half, and {words[name]} take {share:.0%} of a rollout's time"
        return Bottleneck(name, why, remedies[name])
    ratio = means["group"] / max(1e-9, means["rollout"])
    if found.get("depth", 0.0) > 0.6 * found.get("decode", 0.0) and found.get("depth", 0.0) > 0.02:
        why = (
            "generation is the slower half, its engines have room, and the staleness budget (queue.depth) "
            f"lets no more rollouts in; a group waits {ratio:.1f} times its mean rollout for its slowest"
        )
        remedy = (
            "raise queue.depth and queue.bound, or oversample (oversampling.rollouts_extra, groups_extra)"
        )
        return Bottleneck("depth", why, remedy)
    if ratio > 2.5:
        why = (
            f"generation is the slower half: a group waits {ratio:.1f} times its mean rollout for its slowest"
        )
        return Bottleneck("stragglers", why, "oversample rollouts, cap lengths, or prune early")
    why = "generation is the slower half, and its engines decode as fast as they can"
    return Bottleneck("decode", why, "move accelerators to the generator, or use fp8 weights")
