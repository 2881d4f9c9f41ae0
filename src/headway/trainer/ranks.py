"""Data-parallel ranks: processes that share each batch and take the same step.

Each rank has the whole model and the whole optimizer. It computes its share of a batch's rows with the
batch's denominators, so that shares add up; before the step the gradients are summed over a process group of
torch.distributed (gloo on CPUs, NCCL on GPUs), and clipping sees the sum's norm.

Invariant: every rank holds the same sum, bit for bit, so every rank takes the same step and the weights never
need comparing. The gradient is that of one rank, to rounding.

What it waits for: a collective waits for all ranks, at most the process group's timeout; a rank that died
ends it at once with gloo. Either becomes a HeadwayError that says which rank was waiting.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from headway.core.errors import HeadwayError
from headway.trainer.sums import BatchSums

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from headway.trainer.sequences import FetchedRow

T = TypeVar("T")


class Ranks:
    """One rank's view of all of them. Its operations are called by every rank, in the same order.

    Args:
        rank: this process, 0 .. size - 1.
        size: processes.
        rendezvous: a file that does not exist yet, in a directory that all ranks see.
        timeout_s: of a collective.
        backend: gloo for parameters on CPUs, nccl for GPUs.
    """

    def __init__(
        self, rank: int, size: int, rendezvous: Path, *, timeout_s: float, backend: str = "gloo"
    ) -> None:
        self.rank, self.size, self._timeout_s = rank, size, timeout_s
        self.num_begun = 0  # collectives
        store = dist.FileStore(str(rendezvous), size)  # pyright: ignore[reportPrivateImportUsage]

        def meet() -> None:
            timeout = timedelta(seconds=timeout_s)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)

        self._waiting("to meet the others", meet)

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def share(self, fetched: Sequence[FetchedRow]) -> list[FetchedRow]:
        """Return the rows that this rank computes, in their order; perhaps none."""
        return [fetched[index] for index in self._mine(fetched)]

    def _mine(self, fetched: Sequence[FetchedRow]) -> list[int]:
        loads = [sum(len(sample.token_ids) for sample in item.samples) for item in fetched]
        owners = share([item.row.group for item in fetched], loads, self.size)
        return [index for index, owner in enumerate(owners) if owner == self.rank]

    def merged(self, sums: BatchSums) -> BatchSums:
        """Return the sums over all ranks, in the order of the ranks. Log-probs are of this rank's share."""
        total = BatchSums(logprobs=sums.logprobs)
        for other in self._all(replace(sums, logprobs={})):
            total.merge(other)
        return total

    def gathered(self, fetched: Sequence[FetchedRow], mine: Sequence[list[Tensor]]) -> list[list[Tensor]]:
        """Return what the ranks found for each row of `fetched`; `mine` is of this rank's share, in order."""
        found: dict[int, list[Tensor]] = {}
        for part in self._all(dict(zip(self._mine(fetched), mine, strict=True))):
            found |= part
        return [found[index] for index in range(len(fetched))]

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Make every parameter's gradient the sum over all ranks; a rank without rows adds zeros."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient, total in zip(gradients, self._summed(gradients), strict=True):
            gradient.copy_(total)

    def total(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sum of the gradients over all ranks, and leave each rank its own."""
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters.values()]
        return dict(zip(parameters, self._summed(own), strict=True))

    def _summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One collective for each type: many small ones would cost a round trip apiece."""
        summed: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].detach().reshape(-1) for place in places])
            self._waiting("to sum the gradient", lambda flat=flat: dist.all_reduce(flat))
            parts = flat.split([tensors[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                summed[place] = part.view_as(tensors[place])
        return [summed[place] for place in range(len(tensors))]

    def _all(self, mine: T) -> list[T]:
        found: list[Any] = [None] * self.size
        self._waiting("for what they found", lambda: dist.all_gather_object(found, mine))
        return found

    def _waiting(self, what: str, collective: Callable[[], object]) -> None:
        self.num_begun += 1
        try:
            collective()
        except (RuntimeError, dist.DistError) as error:
            rule = (
                f"rank {self.rank} of {self.size} waited for the other ranks {what}, and one of them is gone "
                f"or took longer than {self._timeout_s:g} s"
            )
            raise HeadwayError(rule, value=str(error).split("\n")[0], key="trainer.ranks") from error


def share(groups: Sequence[str], num_tokens: Sequence[int], num_ranks: int) -> list[int]:
    """Return a rank for each row, by groups and tokens: the longest group first, to the rank with the least.

    A group stays together, for its shared prompt is computed once where it is; the largest are cut in two,
    between rows, while there are fewer pieces than ranks or one piece is more than a rank's even part. The
    same arguments give the same answer everywhere.
    """
    pieces: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        pieces.setdefault(group, []).append(index)
    even = sum(num_tokens) / num_ranks

    def load(piece: Sequence[int]) -> int:
        return sum(num_tokens[index] for index in piece)

    waiting = list(pieces.values())
    while True:
        waiting.sort(key=lambda piece: (-load(piece), piece))
        cut = next((piece for piece in waiting if len(piece) > 1), None)
        if cut is None or (len(waiting) >= num_ranks and load(cut) <= even):
            break
        waiting.remove(cut)
        waiting += [cut[: len(cut) // 2], cut[len(cut) // 2 :]]
    loads = [0] * num_ranks
    owners = [0] * len(groups)
    for piece in waiting:
        rank = loads.index(min(loads))
        loads[rank] += load(piece)
        for index in piece:
            owners[index] = rank
    return owners
