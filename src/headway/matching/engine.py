"""How long a replica takes to decode and to prefill: a roofline over its accelerators, with few constants.

One decode iteration gives each of b running requests a token (or v tokens to verify, with speculation):
    memory       (dense weights / t + expert weights of this batch / s + keys and values seen / p) / bandwidth
    compute      b v (2 N + 4 L a c) / (g * peak)
    links        two all-reduces a layer with tensor parallelism, dispatch and combine of each layer with
                 experts on other accelerators
    iteration    max(memory / bandwidth_efficiency, compute / compute_efficiency) + links
                 + layer_s (layers + layers with experts) + iteration_s
g accelerators make a replica: g / t copies of attention, each over t; experts over s = max(t, e) of them; p
of them hold different keys and values (MLA has one latent vector for all heads, so tensor parallelism copies
it). A batch of b tokens touches E (1 - (1 - k / E)^b) of the E experts of a layer, with even routing.

A prefill of n tokens behind c cached ones takes the larger of its compute and of one reading of the weights.

bandwidth_efficiency, compute_efficiency, layer_s and iteration_s are the constants to fit. Skewed routing,
chunking and the engine's own scheduling are in them. The defaults of the first three were fitted on five
points of aiconfigurator's tables (benchmarks/aiconfigurator_check.py), the last on case 1 of examples/cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.matching.hardware import BYTES

if TYPE_CHECKING:
    from headway.matching.contracts import EngineModel
    from headway.matching.hardware import Accelerator
    from headway.matching.model_facts import ModelNumbers
    from headway.matching.spec import GeneratorPoolSettings, TimingSettings

COLLECTIVE_S = 10e-6
"""Seconds of one collective of a few kilobytes inside a domain of links; four times that between machines."""
_ACTIVATION_BYTES = 2.0  # of a value that is sent: bf16
_DISPATCH_BYTES = 3.0  # fp8 to the experts, bf16 back


@dataclass(frozen=True, slots=True)
class Cut:
    """How one replica is laid over its accelerators."""

    gpus: int  # that decode
    prefill_gpus: int  # those apart that prefill, 0 where the same do both
    tensor: int
    expert_shards: int  # accelerators over which one copy of the experts lies
    kv_shards: int  # accelerators that hold different keys and values

    @property
    def copies(self) -> int:
        """Copies of attention, each with requests of its own."""
        return max(1, self.gpus // self.tensor)


def cut_replica(pool: GeneratorPoolSettings, model: ModelNumbers) -> Cut:
    """Return how the settings lay one replica out."""
    replicas = num_replicas(pool)
    gpus = max(1, (pool.count - pool.prefill_count) // replicas)
    tensor = min(pool.tensor_parallel * pool.pipeline_parallel, gpus)
    heads = 1 if model.latent is not None else model.kv_heads
    shards = max(1, gpus // tensor) * min(tensor, max(heads, pool.pipeline_parallel))
    experts = min(max(pool.expert_parallel * pool.pipeline_parallel, tensor), gpus)
    return Cut(gpus, pool.prefill_count // replicas, tensor, experts, shards)


def num_replicas(pool: GeneratorPoolSettings) -> int:
    """Return how many engines the accelerators make."""
    if pool.replicas:
        return pool.replicas
    size = max(pool.tensor_parallel, pool.expert_parallel) * pool.pipeline_parallel
    return max(1, (pool.count - pool.prefill_count) // size)


_MOST_KNOWN = 4096  # numbers of running requests, and of tokens to prefill, whose constants are remembered


class RooflineEngine:
    """An `EngineModel` from first principles and three constants.

    Args:
        model: its numbers.
        accelerator: of every part of the replica.
        pool: precision, parallelism and constants.
        tenants: runs that share the replica; each is told of its part, and waits for the others' too.
        max_running: requests of this run at once.
        kv_tokens: room for keys and values of this run, tokens; 0 for no end.
        offload_tokens: room for those of conversations that wait, in host memory.
    """

    def __init__(
        self,
        model: ModelNumbers,
        accelerator: Accelerator,
        pool: GeneratorPoolSettings,
        *,
        tenants: int = 1,
        max_running: int = 256,
        kv_tokens: int = 0,
        offload_tokens: int = 0,
    ) -> None:
        self.model = model
        self.accelerator = accelerator
        self.pool = pool
        self.cut = cut_replica(pool, model)
        self.max_running = max_running
        self.kv_tokens = kv_tokens
        self.offload_tokens = offload_tokens
        self.tenants = tenants
        self.tokens_per_iteration = pool.speculative_tokens
        self.separate_prefill = self.cut.prefill_gpus > 0
        self.prefill_lines = max(1, self.cut.prefill_gpus // self.cut.tensor) if self.separate_prefill else 1
        weight_bytes = BYTES[pool.weights]
        self._dense_bytes = model.dense_params * weight_bytes / self.cut.tensor
        self._routed_bytes = model.routed_params * weight_bytes / self.cut.expert_shards
        self._kv_bytes = kv_bytes_per_token(model, pool) / self.cut.kv_shards
        self._peak = accelerator.peak(pool.weights)
        self._token_flops, self._score_flops = 2.0 * model.linear_params, 4.0 * model.score_width
        self._fixed_s = pool.iteration_s + pool.layer_s * (model.layers + model.expert_layers)
        self._verified = math.ceil(pool.speculative_tokens) + 1 if pool.speculative_tokens > 1 else 1
        self._bandwidth = accelerator.bandwidth * pool.bandwidth_efficiency
        self._compute = self.cut.gpus * self._peak * pool.compute_efficiency
        self._by_running: dict[
            float, tuple[float, float, float]
        ] = {}  # tokens, weights' bytes, other seconds
        self._by_prefilled: dict[float, tuple[float, float]] = {}  # seconds of the weights and of the links
        self._sees_all = model.indexer is None and not model.window_layers
        index_dim = model.indexer.dim if model.indexer is not None else 0
        self._index_bytes = model.layers * index_dim / self.cut.kv_shards  # keys, one byte each
        line_gpus = self.cut.prefill_gpus / self.prefill_lines if self.separate_prefill else self.cut.gpus
        self._prefill_gpus = line_gpus  # of one line of prefills
        self._prefill_compute = line_gpus * self._peak * pool.compute_efficiency
        self._verified_share = 1.0 if not model.experts else model.experts_per_token / model.experts

    def experts_touched(self, num_tokens: float) -> float:
        """Return the share of a layer's experts that a batch of so many tokens reads."""
        return 1.0 - (1.0 - self._verified_share) ** num_tokens

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        """Return the seconds of one iteration over so many requests that hold so many tokens together."""
        if num_running <= 0:
            return self._fixed_s
        known = self._by_running.get(num_running)
        if known is None:
            if len(self._by_running) >= _MOST_KNOWN:
                self._by_running.clear()
            batch = num_running * self.tenants * self._verified
            weights = self._dense_bytes + self._routed_bytes * self.experts_touched(batch)
            links_s = self._links_s(batch / self.cut.copies, self.cut.gpus)
            known = self._by_running[num_running] = (batch, weights, links_s + self._fixed_s)
        batch, weights, other_s = known
        context = resident_tokens / num_running
        seen = context if self._sees_all else self.model.seen_tokens(context)
        read = weights + seen * num_running * self.tenants * self._kv_bytes
        if self._index_bytes:
            read += resident_tokens * self.tenants * self._index_bytes
        memory_s = read / self._bandwidth
        compute_s = batch * (self._token_flops + self._score_flops * seen) / self._compute
        return (memory_s if memory_s > compute_s else compute_s) + other_s

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        """Return the seconds to compute `num_tokens` new tokens behind `context_tokens` cached ones.

        With prefill apart, those of one of its lines, which has `tensor_parallel` accelerators.
        """
        known = self._by_prefilled.get(num_tokens)
        if known is None:
            if len(self._by_prefilled) >= _MOST_KNOWN:
                self._by_prefilled.clear()
            read = self._dense_bytes + self._routed_bytes * self.experts_touched(num_tokens)
            # Of several copies of attention each has prompts of its own: one prompt waits for one of them.
            links_s = self._links_s(num_tokens * self.cut.tensor / self._prefill_gpus, self.cut.gpus)
            known = self._by_prefilled[num_tokens] = (read / self._bandwidth, links_s)
        memory_s, links_s = known
        context = context_tokens + num_tokens / 2
        seen = context if self._sees_all else self.model.seen_tokens(context)
        compute_s = num_tokens * (self._token_flops + self._score_flops * seen) / self._prefill_compute
        slower_s = memory_s if memory_s > compute_s else compute_s
        return self.tenants * slower_s + links_s + self._fixed_s

    def _links_s(self, tokens: float, gpus: int) -> float:
        """Return the seconds of one iteration's collectives, for so many tokens in each copy of attention."""
        model, cut = self.model, self.cut
        seconds = 0.0
        if cut.tensor > 1:
            payload = tokens * model.hidden * _ACTIVATION_BYTES
            seconds += (
                2 * model.layers * self._collective_s(2 * payload * (cut.tensor - 1) / cut.tensor, cut.tensor)
            )
        if cut.expert_shards > cut.tensor:
            sent = tokens / cut.tensor * model.experts_per_token * model.hidden * _DISPATCH_BYTES
            seconds += 2 * model.expert_layers * self._collective_s(sent / 2, cut.expert_shards)
        return seconds

    def _collective_s(self, num_bytes: float, group: int) -> float:
        start = COLLECTIVE_S * (1 if group <= self.accelerator.link_domain else 4)
        return start + num_bytes / self.accelerator.link_for(group)


def kv_bytes_per_token(model: ModelNumbers, pool: GeneratorPoolSettings) -> float:
    """Return the bytes of one token's keys and values in the engine's precision."""
    return model.kv_bytes_per_token(BYTES[pool.kv])


class MeasuredEngine:
    """An `EngineModel` whose measured times take the place of the formulas where they are given.

    Args:
        formulas: the roofline, or None where every time is measured.
        timings: what was measured.
        max_running: requests at once.
        kv_tokens: room for keys and values, tokens; 0 for no end.
    """

    def __init__(
        self, formulas: RooflineEngine | None, timings: TimingSettings, *, max_running: int, kv_tokens: int
    ) -> None:
        self.formulas = formulas
        self.timings = timings
        self.max_running = max_running
        self.kv_tokens = kv_tokens
        self.offload_tokens = formulas.offload_tokens if formulas is not None else 0
        self.tokens_per_iteration = formulas.tokens_per_iteration if formulas is not None else 1.0
        self.separate_prefill = formulas.separate_prefill if formulas is not None else False
        self.prefill_lines = formulas.prefill_lines if formulas is not None else 1

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        """Return the seconds of one iteration: a line in requests and tokens, or the roofline's."""
        timings = self.timings
        if timings.decode_base_s is None:
            return _need(self.formulas).decode_s(num_running, resident_tokens)
        row_s, token_s = timings.decode_row_s or 0.0, timings.decode_token_s or 0.0
        return timings.decode_base_s + row_s * num_running + token_s * resident_tokens

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        """Return the seconds of a prefill: a line in its tokens, or the roofline's."""
        timings = self.timings
        if timings.prefill_token_s is None and timings.prefill_base_s is None:
            return _need(self.formulas).prefill_s(num_tokens, context_tokens)
        return (timings.prefill_base_s or 0.0) + (timings.prefill_token_s or 0.0) * num_tokens


def _need(formulas: RooflineEngine | None) -> EngineModel:
    if formulas is None:
        raise ValueError("no roofline and no measured time")
    return formulas
