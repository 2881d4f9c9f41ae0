"""Decoding through the trainer's own forward pass: log-probs that the trainer finds again to the last bit.

There is no KV: each decode step computes every running request's whole context anew. The computation is
injected (`ForwardPass`), for it is the trainer's; what is here gives it the face of a Decoder, so that
requests, updates and endings are those of the one decode loop.

Invariant: a reported log-prob is a value that the forward pass returned, never computed again from others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch

from headway.generator.sampling import Draw, Drawn, draw_tokens

if TYPE_CHECKING:
    from array import array

    from headway.generator.decoder import Fed, Piece
    from headway.generator.kv import KvCache
    from headway.models.shape import ModelShape

Tensors = Mapping[str, torch.Tensor]


class ForwardPass(Protocol):
    """The trainer's computation on one sequence, and its weights."""

    def log_distributions(
        self, contexts: Sequence[array[int]], temperatures: Sequence[float]
    ) -> torch.Tensor:
        """Return log_softmax(logits / temperature) of the token after each context, f32 [m, vocab]."""
        ...

    def read(self, manifest: str) -> Tensors:
        """Read a version in the form that it was published in, checked; callable from any thread."""
        ...

    def take(self, tensors: Tensors) -> None:
        """Go on with the weights of a version that was read."""
        ...


class ExactDecoder:
    """A ForwardPass with the face of a Decoder."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self._weights: Tensors = {}

    @property
    def weights(self) -> Tensors:
        """The version taken last; assign another between two calls."""
        return self._weights

    @weights.setter
    def weights(self, tensors: Tensors) -> None:
        self._forward.take(tensors)
        self._weights = tensors

    def prefill(self, pieces: Sequence[Piece], cache: KvCache) -> set[int]:
        """Compute nothing ahead, and nothing that is not finite."""
        return set()

    def decode(self, fed: Sequence[Fed], cache: KvCache) -> torch.Tensor:
        """Return the log-distribution of the token after each context, f32 [m, vocab].

        A greedy row's is that of temperature 1.
        """
        return self._forward.log_distributions(
            [row.tokens for row in fed], [row.temperature or 1.0 for row in fed]
        )


def shape_of_no_kv(shape: ModelShape) -> ModelShape:
    """Return the shape of a cache that holds next to nothing: the loop counts its slots all the same."""
    return replace(shape, num_layers=1, num_kv_heads=1, head_dim=2, experts=None)


@torch.inference_mode()
def draw_exact(log_all: torch.Tensor, draws: Sequence[Draw]) -> Drawn:
    """Draw one token a row from log-distributions at the rows' temperatures, f32 [rows, vocab].

    Log-probs are those in `log_all`; after top-k, top-p and min-p, which training does not use with exact
    numerics, they are renormalised over what these keep.
    """
    plain = [draw._replace(temperature=min(draw.temperature, 1.0) and 1.0) for draw in draws]
    drawn = draw_tokens(log_all.clone(), plain)
    own = log_all.gather(1, torch.tensor(drawn.token_ids)[:, None]).squeeze(1).tolist()
    rows = zip(own, drawn.logprobs, draws, strict=True)
    return drawn._replace(logprobs=[b if draw.truncates else a for a, b, draw in rows])
