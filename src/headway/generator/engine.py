"""The embedded engine: a decoder in this process, behind `core.protocols.Engine`.

Consumes: requests from any number of asyncio consumers. Each is handed to the decode loop's thread (see
`loop`) and waits for chunks; the thread sends a terminal one whatever happens, which unblocks it.

Left out: adapters beside weights that `apply` changed (see `adapter_loading`). GPU tensors should work and
are not tested.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import torch

from headway.core.errors import EngineError, UserError
from headway.core.protocols import (
    MAIN_POLICY,
    Chunk,
    EngineCapabilities,
    EngineStats,
    GenerateRequest,
)
from headway.core.records import ROUTED_EXPERTS
from headway.generator.adapter_loading import AdapterLoading
from headway.generator.decoder import Decoder
from headway.generator.exact import ExactDecoder, draw_exact, shape_of_no_kv
from headway.generator.inbox import Job
from headway.generator.kv import KvCache
from headway.generator.live import Live, Mailbox, refusal_chunk
from headway.generator.loop import DecodeLoop, LoopLimits
from headway.generator.memory import Memory, room_for
from headway.generator.packed import PackedWeights
from headway.generator.packing import pack_weights, update_weights
from headway.generator.places import Places
from headway.generator.policies import Policies, Served
from headway.generator.requests import problem
from headway.generator.slots import Slots
from headway.generator.streams import OFFERED

if TYPE_CHECKING:
    from headway.core.records import FinishReason
    from headway.generator.exact import ForwardPass, Tensors
    from headway.generator.settings import GeneratorSettings
    from headway.models.shape import ModelShape

ReadWeights = Callable[[str], Iterable[tuple[str, torch.Tensor]]]


class EmbeddedEngine:
    """A replica in this process.

    Args:
        model_or_weights: a transformers model, or its state dict. Its tensors are copied.
        shape: the model's, from `headway.models.shape`.
        settings: the `[generator]` section.
        replica: name of this replica, on every chunk.
        decode_text: turns token ids into text; needed for stop strings only.
        read_weights: maps a manifest to the parameters that changed, each in full, named as transformers
            names them. Called in a thread of its own.
        lineage: of the weights at the start.
        number: of the weights at the start.
        exact: computes in the decoder's place, and reads weights; model_or_weights and read_weights are
            not used then. It becomes this engine's.
        base_model: name or path of the model, which an adapter's is compared with.

    Raises ModelError when the weights do not fit the shape.
    """

    def __init__(
        self,
        model_or_weights: torch.nn.Module | Mapping[str, torch.Tensor],
        shape: ModelShape,
        settings: GeneratorSettings,
        *,
        replica: str,
        decode_text: Callable[[Sequence[int]], str] | None,
        read_weights: ReadWeights,
        lineage: int = 0,
        number: int = 0,
        exact: ForwardPass | None = None,
        base_model: str = "",
    ) -> None:
        self._shape = shape
        context = settings.max_context_tokens
        if context > shape.max_context_tokens:
            raise UserError(
                f"the model was made for {shape.max_context_tokens} positions",
                value=context,
                key="generator.max_context_tokens",
                remedy="Lower it, or use a model with a longer context.",
            )
        self._exact = exact
        self._newest: PackedWeights | Tensors  # applied last, or about to be
        if exact is None:
            is_module = isinstance(model_or_weights, torch.nn.Module)
            named = model_or_weights.state_dict() if is_module else model_or_weights
            packed = self._newest = pack_weights(self._shape, named.items())
            decoder, held, device = Decoder(self._shape, packed, context), shape, packed.embed.device
        else:
            self._newest = {}
            decoder, held, device = ExactDecoder(exact), shape_of_no_kv(shape), torch.device("cpu")
        room = room_for(
            kv_bytes_per_token=held.facts().kv_bytes_per_token(),
            head_dim=held.head_dim,
            max_context_tokens=context,
            max_running=settings.max_running,
            kv_cache_mb=settings.kv_cache_mb,
            device_type=device.type,
        )
        cache = KvCache(held, room.num_slots, context, device)
        memory = Memory(room.num_slots, room.num_blocks, cache.block_tokens, cache.give_back)
        slots = Slots(cache, memory, 2 * settings.max_running)
        self._settings = settings
        self._replica = replica
        self._decode_text = decode_text
        self._read_weights = read_weights
        self._applying = asyncio.Lock()
        self._closed = False
        self._main = Served(MAIN_POLICY, lineage, number)
        self._loop = DecodeLoop(
            decoder,
            cache,
            slots,
            Places(slots, settings.max_running),
            LoopLimits(settings.prefill_chunk_tokens, settings.chunk_tokens),
            replica,
            Policies(self._main),
            decode_text,
            min(room.num_blocks, settings.max_running * memory.blocks(context)),
            None if exact is None else draw_exact,
        )
        self._adapters = AdapterLoading(self._loop, shape, settings, device, base_model)
        self._thread = threading.Thread(target=self._loop.run, name=f"engine-{replica}", daemon=True)
        self._thread.start()
        if settings.threads:
            self.set_threads(settings.threads)

    def capabilities(self) -> EngineCapabilities:
        """Return what this engine can do."""
        return EngineCapabilities(
            max_running=self._settings.max_running,
            max_context_tokens=self._settings.max_context_tokens,
            logprobs="sampling",
            top_p=True,
            top_k=True,
            lora=True,  # merged by read_weights, or beside the weights by load_adapter
            max_adapters=0 if self._exact else self._settings.max_adapters,
            max_adapter_rank=self._settings.max_adapter_rank,
            min_p=True,
            kept_ids=self._exact is None,
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield chunks and exactly one terminal chunk, whatever happens.

        Leaving the iteration early aborts the request.
        """
        context = self._settings.max_context_tokens
        refusal = problem(
            request,
            context=context,
            vocab=self._shape.vocab,
            decodes_text=self._decode_text is not None,
            streams=self._streams(),
        )
        if refusal:
            yield refusal_chunk("rejected", refusal, self._replica)
            return
        mailbox = Mailbox()
        room = min(request.sampling.max_tokens, context - len(request.prompt_ids))
        live = Live.of(request, self._main, room, mailbox.put, self._settings.max_kept_ids)

        def refuse(reason: FinishReason, message: str) -> None:
            mailbox.put(refusal_chunk(reason, message, self._replica))

        self._loop.inbox.post(Job(lambda: self._loop.submit(live), refuse))
        ended = False
        try:
            while not ended:
                chunk = await mailbox.get()
                ended = chunk.finish is not None
                yield chunk
        finally:
            if not ended:
                self._loop.inbox.post(Job(lambda: self._loop.abort([request.request_id]), _ignore))

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        """End these requests, or all; each yields its terminal chunk with the tokens it has."""
        await self._loop.inbox.do(lambda: self._loop.abort(request_ids))

    async def end_session(self, session: str) -> None:
        """Free what is kept for a session between its requests."""
        await self._loop.inbox.do(lambda: self._loop.slots.end_session(session))

    async def apply(self, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Take up weights between two decode steps; return seconds without decoding.

        The new tensors are read and packed while decoding goes on. With kv "recompute" the call returns when
        the KV of every running request is of the new weights; with "keep" it returns at the swap. Applies
        are taken in the order of their calls.

        Raises EngineError when the engine has ended, and whatever reading the manifest raises; the present
        weights then stay.
        """
        async with self._changing(kv):
            self._adapters.check_none()
            weights = await asyncio.to_thread(self._read, self._newest, manifest)
            self._newest = weights
            self._adapters.base_changes()
            return await self._loop.inbox.ask(
                lambda done: self._loop.swap(weights, lineage, number, kv, done)
            )

    async def load_adapter(self, policy: str, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Answer for a LoRA adapter under this name, or update it in place; see the contract."""
        if self._exact is not None:
            raise EngineError(
                "an exact engine serves the trainer's policy alone, without adapters beside it",
                value=policy,
                remedy='Use generator.numerics = "fast"',
            )
        async with self._changing(kv):
            return await self._adapters.load(policy, lineage, number, manifest, kv)

    async def drop_adapter(self, policy: str) -> None:
        """Free an adapter; its requests end as aborted."""
        async with self._changing():
            await self._adapters.drop(policy)

    @asynccontextmanager
    async def _changing(self, kv: str = "keep") -> AsyncGenerator[None]:
        """Change the weights of a policy inside the block: such calls take effect in their order."""
        if kv not in ("keep", "recompute"):
            raise EngineError("kv is keep or recompute", value=kv)
        async with self._applying:
            if self._closed:
                raise EngineError("the engine was closed")
            yield

    def set_threads(self, num_threads: int) -> None:
        """Change the decode loop's share of cores, from its next step on."""
        self._loop.inbox.post(Job(lambda: torch.set_num_threads(num_threads), _ignore))

    def stats(self) -> EngineStats:
        """Return the load at the last decode step."""
        return self._loop.stats

    async def close(self) -> None:
        """End every request as aborted and free the memory; idempotent."""
        self._loop.inbox.stop()
        await asyncio.to_thread(self._thread.join)
        if not self._closed:
            self._closed = True
            self._loop.free()
            del self._newest

    def _streams(self) -> frozenset[str]:
        """Return the streams that a request may ask for."""
        if self._exact is not None:
            return frozenset()
        return OFFERED | {ROUTED_EXPERTS} if self._shape.experts else OFFERED

    @torch.inference_mode()
    def _read(self, base: PackedWeights | Tensors, manifest: str) -> PackedWeights | Tensors:
        if self._exact is not None:
            return self._exact.read(manifest)
        assert isinstance(base, PackedWeights)
        return update_weights(self._shape, base, self._read_weights(manifest))


def _ignore(_reason: FinishReason, _message: str) -> None:
    """Refuse silently what has nobody waiting for it."""
