"""The computation that trainer and generator share with `generator.numerics = "exact"`.

How a matrix product is rounded depends on its shape. So both sides compute one sequence a pass, padded to the
same number of positions, and the output layer over the same rows; nothing is packed or shared. Then a
position's value depends on nothing after it: products are row by row, and attention adds exact zeros for
masked keys. The generator, which does not know what will follow, reads off what the trainer will find.

Experts are the exception: each computes as many rows as tokens were sent to it, those after a position
included. Here every expert computes every position, and a token takes from those that it was sent to; that
costs experts / experts per token times the work. Routing is not replayed: it is the same computation.

Bits may depend on the CPU, on torch's build and on where a tensor begins in memory. Both sides run on one
machine with one build, and weights are moved to where torch begins a tensor; `check_threads` makes sure of
the number of threads, which changes while a run goes on.
"""

from __future__ import annotations

import types
from array import array
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from headway.core.errors import HeadwayError, UserError
from headway.trainer.logprobs import CHUNK_TOKENS, log_softmax, token_logprobs
from headway.trainer.packing import pack
from headway.trainer.policy import TrainedPolicy
from headway.weights.read import read_published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from headway.trainer.packing import PackedRow
    from headway.trainer.sequences import TrainSequence
    from headway.trainer.settings import TrainerSettings

_ALIGNMENT = 64  # bytes, of torch's own tensors


class ExactPolicy(TrainedPolicy):
    """A TrainedPolicy whose log-probs do not depend on what is computed beside a token or after it.

    It is the trainer's policy, and the `ForwardPass` of a generator. All log-probs are float32.

    Args:
        model: on the CPU, float32.
        settings: of the trainer; micro_batch_tokens and replay_routing have no effect.
        seed: of the LoRA factors' first values.
        num_positions: that every sequence is padded to; no sequence may be longer.
    """

    def __init__(
        self, model: PreTrainedModel, settings: TrainerSettings, seed: int, num_positions: int
    ) -> None:
        super().__init__(model, replace(settings, replay_routing=False), seed)
        self._num_positions = num_positions
        order = torch.arange(num_positions)
        hidden = torch.full((num_positions, num_positions), torch.finfo(torch.float32).min)
        self._mask = hidden.triu_(1)[None, None]
        self._order = order[None]
        for layer in self.experts.layers if self.experts else ():
            experts: Any = self._base.model.layers[layer].mlp.experts
            experts.forward = types.MethodType(_every_expert, experts)
        for parameter in self._base.parameters():
            if parameter.data_ptr() % _ALIGNMENT:
                parameter.data = parameter.data.clone()

    def rows(self, sequences: Sequence[TrainSequence]) -> list[PackedRow]:
        """Return a row for each sequence with trained tokens; HeadwayError for one that is too long."""
        rows: list[PackedRow] = []
        for index, sequence in enumerate(sequences):
            for row in pack([sequence], self._num_positions):
                if len(row.token_ids) > self._num_positions:
                    rule = f"exact numerics: rollout {sequence.rollout} must fit {self._num_positions} tokens"
                    remedy = "Raise generator.max_context_tokens"
                    raise HeadwayError(rule, value=len(row.token_ids), remedy=remedy)
                rows.append(replace(row, members=(index,)))
        return rows

    def logprobs(self, row: PackedRow) -> tuple[Tensor, Tensor]:
        """Return log-probs (differentiable) and entropies of a row's t trained tokens, nats, both [t]."""
        hidden = self._hidden(row.token_ids)
        head = self._base.get_output_embeddings().weight
        targets = torch.zeros(self._num_positions, dtype=torch.long).scatter(0, row.predict_at, row.targets)
        temperatures = row.temperatures[:1].expand(self._num_positions)
        found: list[tuple[Tensor, Tensor]] = []
        for start in range(0, self._num_positions, CHUNK_TOKENS):
            at = row.predict_at[(row.predict_at >= start) & (row.predict_at < start + CHUNK_TOKENS)] - start
            if len(at):
                part = slice(start, start + CHUNK_TOKENS)
                logp, entropy = token_logprobs(hidden[part], head, targets[part], temperatures[part])
                found.append((logp[at], entropy[at]))
        logps, entropies = zip(*found, strict=True)  # predict_at rises
        return torch.cat(logps), torch.cat(entropies)

    @torch.no_grad()
    def log_distributions(self, contexts: Sequence[array[int]], temperatures: Sequence[float]) -> Tensor:
        """Return log_softmax(logits / temperature) of the token after each context, f32 [m, vocab]."""
        head = self._base.get_output_embeddings().weight
        found: list[Tensor] = []
        for context, temperature in zip(contexts, temperatures, strict=True):
            hidden = self._hidden(torch.tensor(context))
            start = (len(context) - 1) // CHUNK_TOKENS * CHUNK_TOKENS
            part = hidden[start : start + CHUNK_TOKENS]
            divisors = torch.full((len(part),), temperature, dtype=torch.float64)
            # A copy: the view would keep the whole chunk, and a NaN stays where it is.
            found.append(log_softmax(part, head, divisors)[len(context) - 1 - start].clone())
        return torch.stack(found)

    def read(self, manifest: str) -> Mapping[str, Tensor]:
        """Read a published version in its own form, checked.

        Raises HeadwayError for a version that is gone or torn, or of another form or model.
        """
        facts, tensors = read_published(Path(manifest))
        own = self.published()
        expected = ("full" if self._settings.full else "adapter", self._scaling)
        if (facts.kind, facts.scaling) != expected:
            rule = f"published weights {manifest} must be of the kind and scaling {expected}"
            raise HeadwayError(rule, value=(facts.kind, facts.scaling))
        if tensors.keys() != own.keys() or any(tensors[name].shape != own[name].shape for name in own):
            unlike = sorted(tensors.keys() ^ own.keys()) or ["a tensor's shape"]
            rule = f"published weights {manifest} must fit the model"
            raise HeadwayError(rule, value=unlike[0], remedy="Generator and trainer must load one checkpoint")
        return tensors

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with the weights of a version that was read."""
        for name, parameter in self.published().items():
            parameter.copy_(tensors[name])

    def check_threads(self, num_threads: int) -> None:
        """Raise UserError unless one thread and this many compute the same bits here."""
        before = torch.get_num_threads()
        context = array("i", [index % self.vocab for index in range(self._num_positions - 1)])
        try:
            torch.set_num_threads(1)
            one = self.log_distributions([context], [1.0])
            torch.set_num_threads(num_threads)
            many = self.log_distributions([context], [1.0])
        finally:
            torch.set_num_threads(before)
        if not torch.equal(one, many):
            raise UserError(
                f"exact numerics needs results that do not depend on threads: with 1 and {num_threads} they "
                "differ on this machine",
                key="generator.numerics",
                remedy='Give the run one core (taskset -c 0), or use generator.numerics = "fast"',
            )

    @property
    def _scaling(self) -> float:
        return 1.0 if self._settings.full else self._settings.lora_alpha / self._settings.lora_rank

    def _hidden(self, token_ids: Tensor) -> Tensor:
        """Return the final hidden states of a sequence and its padding, [positions, hidden]."""
        padded = functional.pad(token_ids.long(), (0, self._num_positions - len(token_ids)))
        output = self._base.model(input_ids=padded[None], attention_mask=self._mask, position_ids=self._order)
        return output.last_hidden_state[0]


def _every_expert(experts: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return the mixture of transformers' experts, each computed for all positions.

    Args:
        experts: the module, with gate_up_proj [experts, 2 * width, hidden] and down_proj.
        x: [positions, hidden].
        chosen: experts of each position, [positions, experts per token].
        weights: of those, [positions, experts per token].
    """
    shares = torch.zeros(len(x), experts.num_experts, dtype=x.dtype).scatter(1, chosen, weights.to(x.dtype))
    total = torch.zeros_like(x)
    for expert in range(experts.num_experts):
        gate, up = functional.linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        own = functional.linear(experts.act_fn(gate) * up, experts.down_proj[expert])
        total = total + own * shares[:, expert, None]
    return total
