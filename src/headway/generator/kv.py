"""Keys and values of all running requests and kept sessions, in slots of equal size.

Of a model with experts the experts that each token was sent to are kept beside its KV, and move with it: what
a slot holds is one computation.

The requests that decode together occupy slots 0..m-1, so that a step attends over a view and copies
nothing; a request that is not there yet changes places with a slot that need not be.

Invariant: values beyond a slot's resident tokens are finite, for attention multiplies them by zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import torch

from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.models.shape import ModelShape


class KvCache:
    """One tensor of shape [layers, 2, slots, kv_heads, context, head_dim], f32.

    With experts another of shape [expert layers, slots, context, experts per token], int16.
    """

    def __init__(
        self, shape: ModelShape, num_slots: int, max_context_tokens: int, device: torch.device
    ) -> None:
        size = (shape.num_layers, 2, num_slots, shape.num_kv_heads, max_context_tokens, shape.head_dim)
        try:
            if device.type == "cpu":
                # numpy asks the kernel for zero pages: memory is taken when a slot is first written.
                self._values = torch.from_numpy(numpy.zeros(size, dtype=numpy.float32))
            else:
                self._values = torch.zeros(size, dtype=torch.float32, device=device)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise UserError(
                f"the KV cache of {num_slots} slots of {max_context_tokens} tokens does not fit the memory",
                remedy="Lower generator.max_running or generator.max_context_tokens.",
            ) from error

        experts = shape.experts
        self._expert_layers = {layer: at for at, layer in enumerate(experts.layers)} if experts else {}
        self._routes: torch.Tensor | None = None
        if experts:
            size = (len(experts.layers), num_slots, max_context_tokens, experts.per_token)
            self._routes = torch.zeros(size, dtype=torch.int16, device=device)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, each [slots, kv_heads, context, head_dim]."""
        return self._values[index, 0], self._values[index, 1]

    def routes(self, layer: int) -> torch.Tensor | None:
        """Return a layer's experts by slot and position, [slots, context, experts per token]."""
        at = self._expert_layers.get(layer)
        return None if at is None or self._routes is None else self._routes[at]

    def routes_of(self, slot: int, num_tokens: int) -> torch.Tensor | None:
        """Return the experts of a slot's first tokens, [tokens, expert layers, experts per token]."""
        return None if self._routes is None else self._routes[:, slot, :num_tokens].transpose(0, 1)

    @torch.inference_mode()
    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one slot to another."""
        if num_tokens:
            self._values[:, :, target, :, :num_tokens] = self._values[:, :, source, :, :num_tokens]
            if self._routes is not None:
                self._routes[:, target, :num_tokens] = self._routes[:, source, :num_tokens]

    @torch.inference_mode()
    def swap(self, a: int, num_a: int, b: int, num_b: int) -> None:
        """Exchange the contents of two slots, with so many tokens resident in each."""
        kept = self._values[:, :, b, :, :num_b].clone()
        routes = None if self._routes is None else self._routes[:, b, :num_b].clone()
        self.copy(a, b, num_a)
        self._values[:, :, a, :, :num_b] = kept
        if self._routes is not None and routes is not None:
            self._routes[:, a, :num_b] = routes

    @torch.inference_mode()
    def zero(self, slot: int) -> None:
        """Make a slot finite again after a model produced NaN."""
        self._values[:, :, slot] = 0
