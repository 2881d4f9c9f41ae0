"""Drawing tokens, and the log-probs of what was drawn.

Each draw is a function of the request's seed and of the position in its answer alone: nothing that shares the
batch can change it (beyond rounding in the logits), and a request that is made again draws the same.

Log-probs are of the distribution that was drawn from: log_softmax(logits / temperature), and after top-k and
top-p renormalised over what they keep. Greedy draws (temperature 0) report log_softmax(logits).

The draw inverts the cumulative distribution in two levels, blocks and then tokens of one block, with f64
sums: as exact as a full cumulative sum and much cheaper.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

_BLOCK = 256
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Draw(NamedTuple):
    """How one row's token is drawn."""

    temperature: float
    top_p: float
    top_k: int
    uniform: float  # in (0, 1)


def draw_key(seed: int) -> int:
    """Return the 64-bit key of a request's draws."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big")


def uniform(key: int, position: int) -> float:
    """Return the draw of one position, in (0, 1): splitmix64 (Steele, Lea, Flood 2014) as a counter."""
    z = (key + (position + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return ((z >> 16) + 0.5) / (1 << 48)


@torch.inference_mode()
def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Draw one token a row.

    Args:
        logits: f32 [rows, vocab]; overwritten, to spare the memory traffic of a copy.
        draws: one a row.

    Returns:
        Token ids and their log-probs in nats. A row with NaN among its logits has a NaN log-prob and a
        meaningless token.
    """
    rows, vocab = logits.shape
    if any(draw.temperature not in (0.0, 1.0) for draw in draws):
        scale = [draw.temperature or 1.0 for draw in draws]
        logits.div_(torch.tensor(scale, device=logits.device)[:, None])
    shifted = logits.sub_(logits.amax(-1, keepdim=True))
    mass = shifted.exp()
    for row, draw in enumerate(draws):
        if draw.temperature and (draw.top_k or draw.top_p < 1.0):
            _truncate(mass[row], draw)
    blocks = functional.pad(mass, (0, -vocab % _BLOCK)).view(rows, -1, _BLOCK)
    upto = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # [rows, blocks]
    total = upto[:, -1:]
    at = torch.tensor([draw.uniform for draw in draws], dtype=torch.float64, device=logits.device)
    target = total * at[:, None]
    block = torch.searchsorted(upto, target, right=True).clamp_(max=upto.shape[1] - 1)
    before = upto.gather(1, (block - 1).clamp_(min=0)) * (block > 0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, _BLOCK)).squeeze(1)  # [rows, _BLOCK]
    offset = (before + inside.cumsum(-1, dtype=torch.float64) <= target).sum(-1, keepdim=True)
    # Rounding may point past the block's last token that has any probability.
    last = ((inside > 0) * torch.arange(_BLOCK, device=logits.device)).amax(-1, keepdim=True)
    token = block * _BLOCK + torch.minimum(offset, last)
    greedy = [not draw.temperature for draw in draws]
    if any(greedy):
        token = torch.where(
            torch.tensor(greedy, device=logits.device)[:, None], logits.argmax(-1, keepdim=True), token
        )
    token.clamp_(max=vocab - 1)  # only a row of NaN needs it
    logprob = shifted.gather(1, token) - total.log().float()
    return token.squeeze(1).tolist(), logprob.squeeze(1).tolist()


def _truncate(mass: torch.Tensor, draw: Draw) -> None:
    """Zero, in place, what top-k and then top-p leave out of one row, [vocab]."""
    values, order = mass.sort(descending=True, stable=True)
    if draw.top_k:
        mass[order[draw.top_k :]] = 0
        values = values[: draw.top_k]
    if draw.top_p < 1.0:
        # A token stays when those before it have less than top_p together; so the first always does.
        reached = values.cumsum(0, dtype=torch.float64)
        count = int((reached - values < draw.top_p * reached[-1]).sum())
        mass[order[max(count, 1) :]] = 0
