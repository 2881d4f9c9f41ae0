"""Log-probs of given tokens from hidden states, without ever holding tokens x vocabulary of a whole row.

The output layer runs over chunks of tokens. With a frozen output layer (LoRA) the forward pass also keeps
d logp / d hidden, one vector a token, so that the backward pass runs no output layer again; with a trained
one the backward pass recomputes each chunk's logits.

Tokens that truncated sampling drew are of softmax over the ids that it kept: the policy, whatever its weights
are by now, restricted to the same ids. Then only the rows of the output layer that some token of a chunk kept
are multiplied at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headway.trainer.support import Support

if TYPE_CHECKING:
    from torch import Tensor

    from headway.trainer.support import KeptIds

CHUNK_TOKENS = 128


def token_logprobs(
    hidden: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    kept: KeptIds | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log-probs and entropies of softmax(logits / temperature), over the kept ids where given.

    Args:
        hidden: final hidden states that predict the tokens, [t, h].
        output_weight: the output layer, [v, h].
        targets: token ids, [t].
        temperatures: of sampling, > 0, [t].
        kept: what each token was drawn from, its target among it; None for the whole vocabulary.

    Returns:
        log-probs [t], nats, differentiable in `hidden` and `output_weight`; entropies [t], nats, detached,
        of the same distributions. Both are float32, or float64 for a float64 model.
    """
    keep_direction = torch.is_grad_enabled() and hidden.requires_grad and not output_weight.requires_grad
    return _TokenLogprobs.apply(hidden, output_weight, targets, temperatures, kept, keep_direction)  # pyright: ignore


def log_softmax(
    hidden: Tensor, weight: Tensor, temperatures: Tensor, outside: Tensor | None = None
) -> Tensor:
    """Return the whole log-distribution that each hidden state predicts, [t, v]; t is one chunk's.

    Where `outside` says so, [t, v], a token has no probability.
    """
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits /= temperatures.to(logits.dtype)[:, None]
    if outside is not None:
        logits.masked_fill_(outside, -torch.inf)
    return torch.log_softmax(logits, -1, out=logits)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        kept: KeptIds | None,
        keep_direction: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp = torch.empty(len(targets), dtype=wide)
        entropy = torch.empty(len(targets), dtype=wide)
        direction = torch.empty_like(hidden) if keep_direction else None
        for start in range(0, len(targets), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            support = Support.of(weight, targets[part], kept, part)
            log_all = log_softmax(hidden[part], support.weight, temperatures[part], support.outside)
            logp[part] = log_all.gather(1, support.targets[:, None]).squeeze(1)
            probs = log_all.exp()
            if support.outside is not None:
                log_all.masked_fill_(support.outside, 0.0)  # 0 ln 0 is 0
            entropy[part] = -(log_all.mul_(probs)).sum(-1)
            if direction is not None:
                # d logp / d hidden = (W[target] - sum_v p_v W[v]) / T
                mean = probs.to(weight.dtype) @ support.weight
                scale = temperatures[part].to(weight.dtype)[:, None]
                direction[part] = (weight[targets[part]] - mean) / scale
        if direction is not None:
            ctx.save_for_backward(direction)
        else:
            ctx.save_for_backward(hidden, weight, targets, temperatures)
        ctx.kept = kept
        ctx.keep_direction = keep_direction
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        if ctx.keep_direction:
            (direction,) = ctx.saved_tensors
            return grad.to(direction.dtype)[:, None] * direction, None, None, None, None, None
        hidden, weight, targets, temperatures = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden) if need_hidden else None
        weight_grad = torch.zeros_like(weight) if need_weight else None
        for start in range(0, len(targets), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            support = Support.of(weight, targets[part], ctx.kept, part)
            logits_grad = (
                log_softmax(hidden[part], support.weight, temperatures[part], support.outside).exp_().neg_()
            )
            scale = (grad[part] / temperatures[part].to(grad.dtype))[:, None]
            logits_grad.scatter_add_(1, support.targets[:, None], torch.ones_like(scale))
            logits_grad = (logits_grad * scale).to(weight.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = logits_grad @ support.weight
            if weight_grad is not None:
                support.add_weight_grad(weight_grad, logits_grad, hidden[part])
        return hidden_grad, weight_grad, None, None, None, None
