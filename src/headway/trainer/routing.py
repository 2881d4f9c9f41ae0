"""Rollout routing replay (R3): the trainer sends each token to the experts that generation sent it to.

A token near a tie of two experts may go elsewhere in the trainer, for its arithmetic differs a little, and
then its log-prob differs a lot. So generation records the experts (core/records, ROUTED_EXPERTS) and the
trainer takes them, with weights from its own router over the experts given: the router is trained as ever,
where it is trained at all (Ma and others 2025, arXiv 2510.11370).

Where a token has no recorded experts, the trainer's router chooses. KL references are routed like the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headway.core.errors import HeadwayError
from headway.core.records import ROUTED_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from headway.core.records import Stream
    from headway.models.shape import ExpertsShape
    from headway.trainer.sequences import FetchedRow


class RoutingReplay:
    """Takes the place of the routers' choices in a transformers model.

    Attributes:
        routes: of the tokens in the next forward pass, [tokens, expert layers, experts per token], -1 for
            none. They must stay until its backward pass, which computes checkpointed layers once more.
    """

    def __init__(self, model: Any, experts: ExpertsShape) -> None:
        self.routes: Tensor | None = None
        self._experts = experts
        for at, layer in enumerate(experts.layers):
            router = model.model.layers[layer].mlp.gate
            router.register_forward_hook(lambda _module, _inputs, output, at=at: self._routed(output, at))

    def _routed(self, output: tuple[Tensor, Tensor, Tensor], at: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return a router's logits, weights and experts, all [tokens, ...], with the experts replaced."""
        if self.routes is None:
            return None
        logits, _, chosen = output
        given = self.routes[:, at]
        chosen = torch.where(given[:, :1] >= 0, given, chosen)
        weights = logits.softmax(-1, dtype=torch.float32).gather(1, chosen)
        if self._experts.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), chosen


def check_routes(fetched: Sequence[FetchedRow], experts: ExpertsShape) -> None:
    """Raise HeadwayError, naming the rollout, unless recorded experts fit the tokens and the model."""
    for row, samples in fetched:
        for sample in samples:
            if (stream := sample.streams.get(ROUTED_EXPERTS)) is None:
                continue
            wanted = (len(sample.token_ids), len(experts.layers), experts.per_token)
            if stream.shape != wanted or stream.dtype != "int16":
                rule = f"the routed experts of rollout {row.rollout} must be int16 of shape {wanted}"
                raise HeadwayError(rule, value=(stream.dtype, stream.shape))
            if (highest := int(route_rows(stream).max())) >= experts.num:
                rule = f"the routed experts of rollout {row.rollout} must be below {experts.num}"
                raise HeadwayError(rule, value=highest)


def route_rows(stream: Stream) -> Tensor:
    """Return a stream's values, int64 [tokens, expert layers, experts per token]."""
    values = torch.frombuffer(bytearray(stream.data), dtype=torch.int16)
    return values.view(stream.shape).long()
