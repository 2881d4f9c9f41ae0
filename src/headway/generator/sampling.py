"""Drawing tokens, and the log-probs of what was drawn.

Each draw is a function of the request's seed and of the position in its answer alone: nothing that shares the
batch can change it (beyond rounding in the logits), and a request that is made again draws the same.

Log-probs are of the distribution that was drawn from: log_softmax(logits / temperature), renormalised over
what top-k, top-p and min-p keep (see truncation). Greedy draws (temperature 0) report log_softmax(logits).
Whoever asks gets the ids that were kept, and the log-prob under the model itself, log_softmax(logits).

The draw inverts the cumulative distribution in two levels, blocks and then tokens of one block, with f64
sums: as exact as a full cumulative sum and much cheaper.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from headway.core.records import TOKENS
from headway.generator.truncation import kept_tokens

_BLOCK = 256
_LEAST_DIVISOR = torch.finfo(torch.float32).tiny  # smaller ones may be taken for zero
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Draw(NamedTuple):
    """How one row's token is drawn."""

    temperature: float
    top_p: float
    top_k: int
    uniform: float  # in (0, 1)
    min_p: float = 0.0
    max_kept: int = 0  # above 0 the kept ids are wanted, at most so many
    model_logprob: bool = False  # wanted

    @property
    def truncates(self) -> bool:
        """Whether some tokens may be left out."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


class Drawn(NamedTuple):
    """One token a row."""

    token_ids: list[int]
    logprobs: list[float]  # of the distribution drawn from, nats
    kept: dict[int, array[int]]  # ids kept, rising, of the truncated rows that want them
    model_logprobs: dict[int, float]  # of the rows that want them, nats


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
def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> Drawn:
    """Draw one token a row.

    Args:
        logits: f32 [rows, vocab]; overwritten, to spare the memory traffic of a copy.
        draws: one a row.

    A row with NaN among its logits has a NaN log-prob and a meaningless token.
    """
    rows, vocab = logits.shape
    asking = [row for row, draw in enumerate(draws) if draw.model_logprob]
    differing = [row for row in asking if draws[row].truncates or draws[row].temperature not in (0.0, 1.0)]
    models = logits[differing].log_softmax(-1) if differing else None
    shifted = logits.sub_(logits.amax(-1, keepdim=True))
    if any(draw.temperature not in (0.0, 1.0) for draw in draws):
        # After the subtraction: then the smallest temperature, too, leaves the likeliest token finite.
        scale = [max(draw.temperature, _LEAST_DIVISOR) if draw.temperature else 1.0 for draw in draws]
        shifted.div_(torch.tensor(scale, device=logits.device)[:, None])
    mass = shifted.exp()
    kept = _truncate(shifted, mass, draws)
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
    tokens, logprobs = token.squeeze(1).tolist(), logprob.squeeze(1).tolist()
    known = {row: logprobs[row] for row in asking}
    if models is not None:
        known |= dict(zip(differing, models.gather(1, token[differing]).squeeze(1).tolist(), strict=True))
    return Drawn(tokens, logprobs, kept, known)


def _truncate(shifted: torch.Tensor, mass: torch.Tensor, draws: Sequence[Draw]) -> dict[int, array[int]]:
    """Zero the mass, in place, of what truncated rows leave out; return the kept ids that are wanted."""
    cut = [row for row, draw in enumerate(draws) if draw.truncates]
    if not cut:
        return {}
    if len(cut) == len(draws):
        keep = kept_tokens(shifted, draws)
        mass.masked_fill_(~keep, 0)
    else:
        keep = kept_tokens(shifted[cut], [draws[row] for row in cut])
        mass[cut] = mass[cut].masked_fill_(~keep, 0)
    wanted = [at for at, row in enumerate(cut) if draws[row].max_kept]
    if not wanted:
        return {}
    if len(wanted) < len(cut):
        keep = keep[wanted]
    ids = keep.nonzero()[:, 1].int().cpu().split(keep.sum(-1).tolist())
    return {cut[at]: array(TOKENS, each.numpy().tobytes()) for at, each in zip(wanted, ids, strict=True)}
