"""How much memory a run takes, process by process, before it starts.

Formulas, all values float32 (4 bytes). P parameters, T trained ones (P, or those of the LoRA factors),
V vocabulary, L layers, h hidden, q = heads * head_dim, f feed-forward width, r LoRA rank.

Trainer
    program       Python, torch, transformers, peft: measured
    weights       4 P, and 4 T more for LoRA factors
    optimizer     8 T: AdamW's two moments
    activations   A = 4 s (L a + h) of the longest packed row, s = max(micro_batch_tokens,
                  max_context_tokens) but no more than a batch has.
                  a = 4 h + 2 q + 2 v + 2 f, v = key/value heads * head_dim: two residuals, two normed
                  inputs, q and attention's output, k and v, gate and up (trainer/fused.py). Attention holds
                  no mask. In a block with experts, k of E for each token, the place of 2 f is taken by
                  k (4 f + 2 h) + 2 E: every expert's input and output too. With gradient checkpointing
                  L h + a takes the place of L a.
    gradients     max(4 T, 0.3 A'), A' being A without gradient checkpointing: gradients fill the blocks
                  that activations leave free, and the allocator gives those back late (measured)
    logits        3 * 4 * 128 V: a chunk of the output layer (trainer/logprobs.py), and 4 V h more for its
                  gradient when it is trained
    checkpoint    12 T: the copy that is written while training goes on; rank 0 alone has it
    Other ranks (trainer.ranks) take what rank 0 takes, the checkpoint apart; 4 T more of each are there for
    a moment, while gradients are summed, when the activations are gone.
Generator, each replica
    program       Python and torch: measured
    weights       4 P as loaded, which adapters are added to, and as many packed for decoding, the output
                  layer apart from a tied embedding
    update        4 U: the tensors that a version replaces, while both are there (U: linear layers, or all)
    decoding      4 * 4 * max_running * V: logits and what is drawn from
    With numerics = "exact" it is a trainer that only computes forward: the trainer's program, 4 P and 4 T for
    LoRA factors, an update of 4 T, a chunk of the output layer and 4 * max_running * V of what is drawn from.
    KV            slots * max_context_tokens * kv_bytes_per_token; slots are as many as rollouts are in
                  flight, at most 2 * max_running. The memory is taken as it is needed, at most
                  generator.kv_cache_mb where that is set: what is likely is the same with the longest
                  context of the tried rollouts in place of max_context_tokens, where some were tried.
Others
    driver and environment workers: measured; what an environment's own data take is not known
    handed over   5 versions of 4 T in /dev/shm
    sandboxes     max_live * (memory_mb + tmpfs_mb) at most, and work_mb of provider local

KV, sandboxes and the handed over versions are upper limits; the trainer and the generator were within 15 %
of their measured peaks (docs/check.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.config.compose import Config
    from headway.core.facts import ModelFacts
    from headway.trainer.settings import TrainerSettings

MIB = 1 << 20
F32 = 4
VERSIONS_AT_ONCE = 5
"""Published versions that exist at a time: kept, being written, being read."""

_TRAINER_PROGRAM = 400 * MIB
_GENERATOR_PROGRAM = 320 * MIB
_DRIVER_PROGRAM = 45 * MIB
_WORKER_PROGRAM = 45 * MIB
_ROLLOUT_BYTES = 40_000  # of one in flight, driver and environment worker together
_FREE_SHARE = 0.3  # of the activations: blocks that were freed and are not given back
_CHUNK_TOKENS = 128  # trainer/logprobs.py, which imports torch


@dataclass(frozen=True, slots=True)
class Part:
    """Memory of one kind in one process."""

    process: str
    what: str
    num_bytes: int
    is_limit: bool = False  # taken as the run goes, up to this
    likely_bytes: int | None = None  # what of a limit is likely to be taken, where something tells


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Every part, in the order of the processes."""

    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """Everything together, limits included."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def least_bytes(self) -> int:
        """What is taken for certain: without the parts that are limits."""
        return sum(part.num_bytes for part in self.parts if not part.is_limit)

    @property
    def processes(self) -> dict[str, int]:
        """Bytes of each process, limits included."""
        return self._by_process(lambda part: part.num_bytes)

    @property
    def likely_processes(self) -> dict[str, int]:
        """Bytes of each process, limits as far as they are likely to be taken."""
        return self._by_process(
            lambda part: part.num_bytes if part.likely_bytes is None else part.likely_bytes
        )

    def _by_process(self, size: Callable[[Part], int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.process] = found.get(part.process, 0) + size(part)
        return found


def estimate_memory(
    facts: ModelFacts, config: Config, *, needs_sandbox: bool = True, context_tokens: int = 0
) -> MemoryEstimate:
    """Return what a run of this model under these settings takes.

    Args:
        facts: the model's shape.
        config: the run's.
        needs_sandbox: whether the environment uses any.
        context_tokens: the longest context of tried rollouts, 0 where none was tried.
    """
    parts = [
        *_trainer(facts, config, "trainer"),
        Part("trainer", "checkpoint", checkpoint_bytes(facts, config)),
    ]
    for rank in range(1, config.trainer.ranks):
        parts += _trainer(facts, config, f"trainer rank {rank}")
    for index in range(config.generator.replicas):
        parts += _generator(facts, config, f"generator{index}", context_tokens)
    in_flight = rollouts_in_flight(config)
    parts += [
        Part("driver", "program", _DRIVER_PROGRAM),
        Part("environment", "programs", config.environment.workers * _WORKER_PROGRAM),
        Part("environment", "rollouts", in_flight * _ROLLOUT_BYTES, is_limit=True),
        Part("shared", "handed over versions", handover_bytes(facts, config), is_limit=True),
    ]
    if needs_sandbox:
        sandbox, live = config.sandbox, min(config.sandbox.max_live, in_flight)
        kept_mb = sandbox.tmpfs_mb + (sandbox.work_mb if sandbox.provider == "local" else 0)
        parts.append(Part("sandboxes", "programs in them", live * sandbox.memory_mb * MIB, is_limit=True))
        parts.append(Part("sandboxes", "files in memory", live * kept_mb * MIB, is_limit=True))
    return MemoryEstimate(tuple(parts))


def trained_params(facts: ModelFacts, config: Config) -> int:
    """Return how many parameters the optimizer moves."""
    trainer = config.trainer
    if trainer.full:
        return facts.num_params
    return facts.lora_params(trainer.lora_rank, trainer.lora_targets)


def handover_bytes(facts: ModelFacts, config: Config) -> int:
    """Return what the published versions that exist at a time take where they are handed over."""
    return F32 * trained_params(facts, config) * VERSIONS_AT_ONCE


def checkpoint_bytes(facts: ModelFacts, config: Config) -> int:
    """Return the size of one checkpoint: the trained weights and the optimizer's two moments of them."""
    return 3 * F32 * trained_params(facts, config)


def rollouts_in_flight(config: Config) -> int:
    """Return how many rollouts may be in flight at once: those of training beside those of an evaluation."""
    queue, extra = config.queue, config.oversampling
    groups = (queue.max_depth + 1) * queue.batch_groups + extra.groups_extra
    train = groups * (queue.group_size + extra.rollouts_extra)
    if queue.max_running_rollouts:
        train = min(train, max(queue.max_running_rollouts, queue.group_size))
    slots = config.generator.replicas * config.generator.max_running
    evaluated = config.eval.num_tasks * config.eval.rollouts_per_task
    if config.eval.max_share < 1.0:
        evaluated = min(evaluated, int(config.eval.max_share * slots))
    return train + evaluated


def _trainer(facts: ModelFacts, config: Config, name: str) -> list[Part]:
    settings, trained = config.trainer, trained_params(facts, config)
    added = 0 if settings.full else trained
    most = config.queue.batch_size * config.generator.max_context_tokens
    row = min(max(settings.micro_batch_tokens, config.generator.max_context_tokens), most)
    kept = _activation_bytes(facts, replace(settings, gradient_checkpointing=False), row)
    logits = 3 * F32 * _CHUNK_TOKENS * facts.vocab
    if settings.full:
        logits += F32 * facts.vocab * facts.hidden
    return [
        Part(name, "program", _TRAINER_PROGRAM),
        Part(name, "weights", F32 * (facts.num_params + added)),
        Part(name, "optimizer", 2 * F32 * trained),
        Part(name, "activations", _activation_bytes(facts, settings, row)),
        Part(name, "gradients", max(F32 * trained, int(_FREE_SHARE * kept))),
        Part(name, "logits", logits),
    ]


def _activation_bytes(facts: ModelFacts, settings: TrainerSettings, num_tokens: int) -> int:
    query, key = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    same = 4 * facts.hidden + 2 * query + 2 * key
    dense = same + 2 * facts.intermediate
    mixture = facts.experts_per_token * (4 * facts.expert_intermediate + 2 * facts.hidden)
    mixture += same + 2 * facts.num_experts
    if settings.gradient_checkpointing:
        present = ([dense] if facts.num_dense_layers else []) + ([mixture] if facts.num_expert_layers else [])
        values = facts.num_layers * facts.hidden + max(present)
    else:
        values = facts.num_dense_layers * dense + facts.num_expert_layers * mixture
    return F32 * num_tokens * (values + facts.hidden)


def _generator(facts: ModelFacts, config: Config, name: str, context_tokens: int) -> list[Part]:
    settings = config.generator
    if settings.numerics == "exact":
        return _exact_generator(facts, config, name)
    embedding = facts.vocab * facts.hidden
    packed = facts.matrix_params + embedding  # of a tied embedding the output layer is a copy
    query, key = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    attention = 2 * facts.num_layers * facts.hidden * (query + key)
    changed = packed
    if not config.trainer.full:
        changed = attention if facts.num_expert_layers else facts.matrix_params - embedding
    slots = min(2 * settings.max_running, -(-rollouts_in_flight(config) // settings.replicas))
    column = slots * facts.kv_bytes_per_token(F32)
    kv = settings.max_context_tokens * column
    if settings.kv_cache_mb:
        kv = min(kv, settings.kv_cache_mb * MIB)
    likely = min(kv, context_tokens * column) if context_tokens else None
    return [
        Part(name, "program", _GENERATOR_PROGRAM),
        Part(name, "weights", F32 * (facts.num_params + packed)),
        Part(name, "update", F32 * changed),
        Part(name, "decoding", 4 * F32 * settings.max_running * facts.vocab),
        Part(name, "KV", kv, is_limit=True, likely_bytes=likely),
    ]


def _exact_generator(facts: ModelFacts, config: Config, name: str) -> list[Part]:
    trained = trained_params(facts, config)
    added = 0 if config.trainer.full else trained
    rows = 3 * _CHUNK_TOKENS + 4 * config.generator.max_running
    return [
        Part(name, "program", _TRAINER_PROGRAM),
        Part(name, "weights", F32 * (facts.num_params + added)),
        Part(name, "update", F32 * trained),
        Part(name, "decoding", F32 * rows * facts.vocab + F32 * config.generator.max_context_tokens**2),
    ]
