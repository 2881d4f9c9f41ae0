"""Log-probs of given tokens from hidden states, without ever holding tokens x vocabulary of a whole row.

The output layer runs over chunks of tokens. With a frozen output layer (LoRA) the forward pass also keeps
d logp / d hidden, one vector a token, so that the backward pass runs no output layer again; with a trained
one the backward pass recomputes each chunk's logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_TOKENS = 256


def token_logprobs(
    hidden: Tensor, output_weight: Tensor, targets: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probs and entropies of softmax(logits / temperature).

    Args:
        hidden: final hidden states that predict the tokens, [t, h].
        output_weight: the output layer, [v, h].
        targets: token ids, [t].
        temperatures: of sampling, > 0, [t].

    Returns:
        log-probs [t], nats, differentiable in `hidden` and `output_weight`; entropies [t], nats, detached.
        Both are float32, or float64 for a float64 model.
    """
    keep_direction = torch.is_grad_enabled() and hidden.requires_grad and not output_weight.requires_grad
    return _TokenLogprobs.apply(hidden, output_weight, targets, temperatures, keep_direction)  # pyright: ignore


def log_softmax(hidden: Tensor, weight: Tensor, temperatures: Tensor) -> Tensor:
    """Return the whole log-distribution that each hidden state predicts, [t, v]; t is one chunk's."""
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits /= temperatures.to(logits.dtype)[:, None]
    logits -= torch.logsumexp(logits, dim=-1, keepdim=True)
    return logits


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor, keep_direction: bool
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp = torch.empty(len(targets), dtype=wide)
        entropy = torch.empty(len(targets), dtype=wide)
        direction = torch.empty_like(hidden) if keep_direction else None
        for start in range(0, len(targets), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            log_all = log_softmax(hidden[part], weight, temperatures[part])
            logp[part] = log_all.gather(1, targets[part, None]).squeeze(1)
            probs = log_all.exp()
            entropy[part] = -(log_all.mul_(probs)).sum(-1)
            if direction is not None:
                # d logp / d hidden = (W[target] - sum_v p_v W[v]) / T
                mean = probs.to(weight.dtype) @ weight
                scale = temperatures[part].to(weight.dtype)[:, None]
                direction[part] = (weight[targets[part]] - mean) / scale
        if direction is not None:
            ctx.save_for_backward(direction)
        else:
            ctx.save_for_backward(hidden, weight, targets, temperatures)
        ctx.keep_direction = keep_direction
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        if ctx.keep_direction:
            (direction,) = ctx.saved_tensors
            return grad.to(direction.dtype)[:, None] * direction, None, None, None, None
        hidden, weight, targets, temperatures = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden) if need_hidden else None
        weight_grad = torch.zeros_like(weight) if need_weight else None
        for start in range(0, len(targets), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            logits_grad = log_softmax(hidden[part], weight, temperatures[part]).exp_().neg_()
            scale = (grad[part] / temperatures[part].to(grad.dtype))[:, None]
            logits_grad.scatter_add_(1, targets[part, None], torch.ones_like(scale))
            logits_grad = (logits_grad * scale).to(weight.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = logits_grad @ weight
            if weight_grad is not None:
                weight_grad.addmm_(logits_grad.T, hidden[part])
        return hidden_grad, weight_grad, None, None, None
