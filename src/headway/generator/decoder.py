"""The forward pass of a decoder over a KvCache, in plain torch; the shape says what its family adds.

Prefill writes KV, and computes log-probs of the prompt where they are wanted; logits come from decode steps.
A request whose KV misses just its last token is ready to decode, be that token the last of its prompt or the
last it sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from headway.generator.adapters import Mixture, together
from headway.generator.attention import Shared, attend_piece, attend_rows, levels_of
from headway.generator.experts import mix, route
from headway.generator.packed import PackedWeights, linear
from headway.generator.rotary import rotations
from headway.generator.scoring import target_logprobs

if TYPE_CHECKING:
    from array import array

    from headway.generator.kv import KvCache
    from headway.generator.policies import Served
    from headway.generator.streams import PromptLogprobs
    from headway.models.shape import ModelShape


class Piece(NamedTuple):
    """Consecutive tokens of one slot whose KV is to be computed."""

    slot: int
    start: int  # position of the first; the KV before it is resident
    token_ids: array[int]
    served: Served
    scores: PromptLogprobs | None = None  # takes the log-probs of the tokens that these predict
    shared: Shared = ()  # where the KV of the first tokens is, when not in the slot


class Fed(NamedTuple):
    """One row of a decode step: the newest token of the context in the slot of the row's number."""

    tokens: array[int]  # the whole context; the KV of all but the last is resident
    served: Served
    temperature: float = 1.0  # of sampling, 0 is greedy; an exact decoder's answer depends on it
    shared: Shared = ()

    @property
    def position(self) -> int:
        """Position of the newest token."""
        return len(self.tokens) - 1


class Decoder:
    """Weights, rotary factors and the two kinds of forward pass.

    Attributes:
        weights: assign new ones between two calls.
    """

    def __init__(self, shape: ModelShape, weights: PackedWeights, max_context_tokens: int) -> None:
        self.weights = weights
        self._shape = shape
        self._device = weights.embed.device
        self._rotations = rotations(shape, max_context_tokens).to(self._device)
        self._columns = torch.arange(max_context_tokens, device=self._device)
        self._num_rotated = shape.num_heads + shape.num_kv_heads

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[Piece], cache: KvCache) -> set[int]:
        """Compute the KV of these pieces, packed into one batch of tokens.

        Returns the slots of pieces with KV that is not finite. What is not finite in one layer is not in the
        next ones either, so that the last one is looked at.
        """
        grouped = together([each.served.adapter for each in pieces], [len(each.token_ids) for each in pieces])
        mixture = None
        if grouped is not None:
            order, mixture = grouped
            pieces = [pieces[item] for item in order]
        tokens = torch.tensor([token for piece in pieces for token in piece.token_ids], device=self._device)
        lengths = [len(piece.token_ids) for piece in pieces]
        slots = torch.tensor([piece.slot for piece in pieces], device=self._device).repeat_interleave(
            torch.tensor(lengths, device=self._device)
        )
        positions = torch.cat(
            [self._columns[piece.start : piece.start + n] for piece, n in zip(pieces, lengths, strict=True)]
        )
        rotation = self._rotations[positions].unsqueeze(1)
        elsewhere = [sum(n for _, n in piece.shared) for piece in pieces]
        columns = positions
        if any(elsewhere):
            counts = torch.tensor(lengths, device=self._device)
            columns = positions - torch.tensor(elsewhere, device=self._device).repeat_interleave(counts)
        starts = [piece.start - n for piece, n in zip(pieces, elsewhere, strict=True)]
        masks = [self._causal(start, n) for start, n in zip(starts, lengths, strict=True)]
        heads, kv_heads, d = self._shape.num_heads, self._shape.num_kv_heads, self._shape.head_dim
        last = len(self.weights.layers) - 1
        scored = any(piece.scores is not None and not piece.scores.complete for piece in pieces)
        x = functional.embedding(tokens, self.weights.embed)
        for index, layer in enumerate(self.weights.layers):
            keys, values = cache.layer(index)
            q = self._project(x, index, rotation, keys, values, slots, columns, mixture)
            if index == last and layer.router is None and not scored:
                break  # its KV is written, and nobody reads the output
            attended = x.new_empty(len(tokens), heads * d)
            at = 0
            for piece, start, n, mask in zip(pieces, starts, lengths, masks, strict=True):
                group = q[at : at + n].view(n, kv_heads, -1, d).permute(1, 2, 0, 3)
                seen = (*piece.shared, (piece.slot, start + n))
                result = attend_piece(group, keys, values, mask, seen)
                attended[at : at + n] = result.permute(2, 0, 1, 3).reshape(n, -1)
                at += n
            x = x + _product(attended, layer.out, layer.out_bias, mixture, index, "out")
            x = x + self._feed_forward(x, index, cache.routes(index), slots, columns, mixture)
        for piece, output in zip(pieces, x.split(lengths), strict=True) if scored else ():
            if (scores := piece.scores) is not None:
                part = scores.lacking(piece.start, len(output))
                targets = torch.from_numpy(scores.targets(piece.start, part)).to(self._device)
                found = target_logprobs(output[part], self._logits, targets)
                scores.take(piece.start, part, found.cpu().numpy())
        keys, values = cache.layer(last)
        written = keys[slots, :, columns].abs().amax((1, 2)) + values[slots, :, columns].abs().amax((1, 2))
        return set(slots[~written.isfinite()].tolist())

    @torch.inference_mode()
    def decode(self, fed: Sequence[Fed], cache: KvCache) -> torch.Tensor:
        """Feed one token to each of the slots 0..m-1 and return the next tokens' logits, f32 [m, vocab]."""
        rows = len(fed)
        positions = [row.position for row in fed]
        token_ids = torch.tensor([row.tokens[-1] for row in fed], device=self._device)
        at = places = torch.tensor(positions, device=self._device)
        levels = levels_of([row.shared for row in fed], self._device)
        if levels:  # a token's column is its position less what its row shares
            own = [each - sum(n for _, n in row.shared) for each, row in zip(positions, fed, strict=True)]
            at = torch.tensor(own, device=self._device)
        else:
            own = positions
        longest = max(own) + 1
        mask = None
        if min(own) + 1 < longest:
            hidden = self._columns[:longest] > at[:, None]
            mask = at.new_zeros(hidden.shape, dtype=torch.float32).masked_fill_(hidden, float("-inf"))
            mask = mask[:, None, None]
        slots = torch.arange(rows, device=self._device)  # rows may exceed the context
        grouped = together([row.served.adapter for row in fed], [1] * rows)
        mixture = back = None
        if grouped is not None:  # all but attention is computed adapter by adapter
            slots, mixture = torch.tensor(grouped[0], device=self._device), grouped[1]
            token_ids, at, places, back = token_ids[slots], at[slots], places[slots], slots.argsort()
        rotation = self._rotations[places].unsqueeze(1)
        kv_heads, d = self._shape.num_kv_heads, self._shape.head_dim
        x = functional.embedding(token_ids, self.weights.embed)
        for index, layer in enumerate(self.weights.layers):
            keys, values = cache.layer(index)
            q = self._project(x, index, rotation, keys, values, slots, at, mixture)
            if back is not None:
                q = q[back]
            q = q.view(rows, kv_heads, -1, d)  # the queries of one key/value head attend together
            attended = attend_rows(q, keys, values, longest, mask, levels).reshape(rows, -1)
            if back is not None:
                attended = attended[slots]
            x = x + _product(attended, layer.out, layer.out_bias, mixture, index, "out")
            x = x + self._feed_forward(x, index, cache.routes(index), slots, at, mixture)
        if back is not None:
            x = x[back]
        return self._logits(x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return linear(self._norm(x, self.weights.norm), self.weights.head)

    def _project(
        self,
        x: torch.Tensor,
        index: int,
        rotation: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        mixture: Mixture | None,
    ) -> torch.Tensor:
        """Write the tokens' keys and values and return their queries, [tokens, heads, head_dim]."""
        heads, d = self._shape.num_heads, self._shape.head_dim
        layer = self.weights.layers[index]
        x = self._norm(x, layer.norm_attention)
        mixed = _product(x, layer.qkv, layer.qkv_bias, mixture, index, "qkv").view(len(x), -1, d)
        rotating = mixed[:, : self._num_rotated]
        if layer.norm_heads is not None:
            rotating = functional.rms_norm(rotating, (d,), None, self._shape.norm_eps) * layer.norm_heads
        pairs = torch.view_as_complex(rotating.unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * rotation).flatten(-2)
        keys[slots, :, positions] = rotated[:, heads:]
        values[slots, :, positions] = mixed[:, self._num_rotated :]
        return rotated[:, :heads]

    def _feed_forward(
        self,
        x: torch.Tensor,
        index: int,
        routes: torch.Tensor | None,
        slots: torch.Tensor,
        positions: torch.Tensor,
        mixture: Mixture | None,
    ) -> torch.Tensor:
        """Return what the block adds after attention; experts are noted in the cache, beside the KV."""
        layer = self.weights.layers[index]
        x = self._norm(x, layer.norm_mlp)
        if layer.router is None:
            both = _product(x, layer.gate_up, layer.gate_up_bias, mixture, index, "gate_up")
            gate, up = both.chunk(2, dim=-1)
            x = functional.silu(gate) * up
            return _product(x, layer.down, layer.down_bias, mixture, index, "down")
        assert self._shape.experts is not None
        assert routes is not None
        chosen = route(x, layer.router, self._shape.experts)
        routes[slots, positions] = chosen.experts.to(routes.dtype)
        return mix(x, chosen, layer.gate_up, layer.down)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self._shape.hidden,), weight, self._shape.norm_eps)

    def _causal(self, start: int, n: int) -> torch.Tensor | None:
        """Return what to add to the scores of n tokens from a column on; None for plain causal attention."""
        if start == 0:
            return None
        hidden = self._columns[: start + n] > self._columns[start : start + n, None]
        return torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, float("-inf"))


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mixture: Mixture | None,
    layer: int,
    matrix: str,
) -> torch.Tensor:
    """Return x @ weight.T + bias, and what the rows' adapters add."""
    y = linear(x, weight, bias)
    if mixture is not None:
        mixture.add(y, x, layer, matrix)
    return y
