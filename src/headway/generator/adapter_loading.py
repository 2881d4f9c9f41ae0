"""Loading, updating and dropping the adapters of one engine, as its callers ask for it.

Consumes: calls, one at a time: whoever calls holds the engine's lock. Files are read and packed in a thread
of their own; what follows happens in the decode loop's thread, between two decode steps.

An adapter belongs to the weights that the engine was made with. So an engine serves adapters, or takes up
other weights by `apply`, but not both: the loop's own LoRA is merged into the weights, and another adapter on
top of that would be neither's policy.
"""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import torch

from headway.core.errors import EngineError, UserError
from headway.core.protocols import MAIN_POLICY
from headway.generator.adapters import AdapterWeights, pack_adapter
from headway.models.adapters import read_adapter

if TYPE_CHECKING:
    from headway.generator.loop import DecodeLoop
    from headway.generator.settings import GeneratorSettings
    from headway.models.shape import ModelShape


class AdapterLoading:
    """The adapters of one engine.

    Args:
        loop: of the engine.
        shape: of the model.
        settings: with the limits.
        device: of the weights.
        base_model: name or path of the model; an adapter that names another one is warned of.
    """

    def __init__(
        self,
        loop: DecodeLoop,
        shape: ModelShape,
        settings: GeneratorSettings,
        device: torch.device,
        base_model: str,
    ) -> None:
        self._loop = loop
        self._shape = shape
        self._settings = settings
        self._device = device
        self._base_model = base_model
        self._names: set[str] = set()
        self._is_base = True  # the decoder has the weights that the engine was made with

    def check_none(self) -> None:
        """Raise EngineError while there are adapters: the weights under them must not change."""
        if self._names:
            raise EngineError(
                "an engine that serves adapters keeps its weights",
                value=", ".join(sorted(self._names)),
                remedy="Drop the adapters first, or load the new version as an adapter",
            )

    def base_changes(self) -> None:
        """Note that the decoder gets weights that no adapter belongs to."""
        self._is_base = False

    async def load(self, policy: str, lineage: int, number: int, place: str, kv: str) -> float:
        """See `core.protocols.Engine.load_adapter`."""
        self._check(policy)
        weights = await asyncio.to_thread(self._read, place)
        self._names.add(policy)
        return await self._loop.inbox.ask(
            lambda done: self._loop.load_adapter(policy, lineage, number, weights, kv, done)
        )

    async def drop(self, policy: str) -> None:
        """See `core.protocols.Engine.drop_adapter`."""
        if policy not in self._names:
            raise EngineError(
                "only an adapter that was loaded can be dropped",
                value=policy,
                remedy=f"Loaded are {', '.join(sorted(self._names)) or 'none'}",
            )
        self._names.remove(policy)
        await self._loop.inbox.ask(lambda done: self._loop.drop_adapter(policy, done))

    def _check(self, policy: str) -> None:
        if not policy or policy == MAIN_POLICY:
            raise UserError(
                f"an adapter must have a name of its own: {MAIN_POLICY} is the policy without one",
                value=policy,
                remedy="Choose another name",
            )
        if not self._is_base:
            raise EngineError(
                "an adapter can be loaded only while the engine has the weights it was made with",
                value=policy,
                remedy="Start an engine of its own for adapters: this one follows a run",
            )
        most = self._settings.max_adapters
        if policy not in self._names and len(self._names) >= most:
            raise UserError(
                f"at most {most} adapters may be loaded at once",
                value=policy,
                key="generator.max_adapters",
                remedy="Drop one first, or raise the limit",
            )

    @torch.inference_mode()
    def _read(self, place: str) -> AdapterWeights:
        adapter = read_adapter(Path(place), self._shape, max_rank=self._settings.max_adapter_rank)
        ours, theirs = PurePath(self._base_model).name, PurePath(adapter.base_model).name
        if ours and theirs and ours.lower() != theirs.lower():
            warnings.warn(
                f"the adapter {adapter.path} says that its base is {adapter.base_model}; it fits, and is "
                f"served with {self._base_model}",
                stacklevel=2,
            )
        return pack_adapter(adapter, self._shape, self._device)
