"""Log-probs of given tokens under the model itself, from a forward pass's output.

The output layer runs over a few tokens at a time, so that tokens x vocabulary never is in memory for a whole
prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_TOKENS = 64


@torch.inference_mode()
def target_logprobs(
    hidden: torch.Tensor, logits_of: Callable[[torch.Tensor], torch.Tensor], targets: torch.Tensor
) -> torch.Tensor:
    """Return log_softmax(logits) at each token's target, nats, f32 [n].

    Args:
        hidden: the last layer's output, [n, hidden].
        logits_of: applies the final norm and the output layer, [m, hidden] to f32 [m, vocab].
        targets: token ids, [n].
    """
    found = hidden.new_empty(len(hidden), dtype=torch.float32)
    for start in range(0, len(hidden), _CHUNK_TOKENS):
        part = slice(start, start + _CHUNK_TOKENS)
        logits = logits_of(hidden[part]).float()
        found[part] = logits.gather(1, targets[part, None]).squeeze(1) - logits.logsumexp(-1)
    return found
