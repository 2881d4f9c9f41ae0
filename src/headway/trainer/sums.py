"""What forward and backward passes leave behind: sums that add up over micro-batches, and their means."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from headway.algorithms.losses.apply import LossOutput
    from headway.trainer.packing import PackedRow


@dataclass(slots=True)
class BatchSums:
    """Sums over the micro-batches so far.

    Attributes:
        logprobs: log-probs of the trained tokens of each sequence before the step, by sequence, [k].
    """

    loss: float = 0.0  # weighted by the normaliser; over a whole batch it is the batch's loss
    num_tokens: int = 0  # positions through the model, shared prefixes once
    num_unshared_tokens: int = 0  # the same if every sequence were computed alone
    num_trained_tokens: int = 0
    num_micro_batches: int = 0
    terms: Counter[str] = field(default_factory=Counter[str])  # of the loss, see LossOutput.sums
    ratio_max: float = 0.0
    entropy: float = 0.0
    mismatch: float = 0.0  # sum of |trainer - behaviour| over tokens of the newest version
    mismatch_max: float = 0.0
    num_fresh_tokens: int = 0
    logprobs: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def add(self, row: PackedRow, output: LossOutput, logp: Tensor, entropy: Tensor) -> None:
        """Add one micro-batch."""
        self.loss += output.total.item()
        self.num_tokens += len(row.token_ids)
        self.num_trained_tokens += output.num_tokens
        self.num_micro_batches += 1
        self.terms.update(output.sums)
        self.ratio_max = max(self.ratio_max, output.ratio_max)
        self.entropy += entropy.sum().item()
        gap = (logp - row.behaviour_logp).abs()[row.fresh]
        if len(gap):
            self.mismatch += gap.sum().item()
            self.mismatch_max = max(self.mismatch_max, gap.max().item())
            self.num_fresh_tokens += len(gap)
        self.logprobs |= dict(zip(row.members, logp.split(row.lengths), strict=True))

    def merge(self, other: BatchSums) -> None:
        """Add the sums of another part of the batch; log-probs stay with the part that they are of."""
        self.loss += other.loss
        self.num_tokens += other.num_tokens
        self.num_unshared_tokens += other.num_unshared_tokens
        self.num_trained_tokens += other.num_trained_tokens
        self.num_micro_batches += other.num_micro_batches
        for name, value in other.terms.items():
            self.terms[name] += value  # Counter.update would do the same, and is not typed for floats
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.entropy += other.entropy
        self.mismatch += other.mismatch
        self.mismatch_max = max(self.mismatch_max, other.mismatch_max)
        self.num_fresh_tokens += other.num_fresh_tokens

    def metrics(self) -> dict[str, float]:
        """Return means over trained tokens, under names that do not change: others watch them.

        `mismatch_kl` is the k3 estimate of KL(mu || pi) at the start of the step, staleness included, and
        `mismatch_kl_k1` the k1 estimate, nats a token. `mismatch_mean` and `mismatch_max` are there only
        where tokens of the newest version were trained, `correction_mean` with a correction, `kl_reference`
        with a KL penalty.
        """
        num = max(1, self.num_trained_tokens)
        metrics = {
            "loss": self.loss,
            "clip_fraction": self.terms["clipped"] / num,
            "mask_fraction": self.terms["masked"] / num,
            "ratio_mean": self.terms["ratio"] / num,
            "ratio_max": self.ratio_max,
            "mismatch_kl": self.terms["kl_k3"] / num,
            "mismatch_kl_k1": self.terms["kl_k1"] / num,
            "advantage_abs_mean": self.terms["advantage"] / num,
            "entropy": self.entropy / num,
            "num_micro_batches": float(self.num_micro_batches),
            "num_unshared_tokens": float(self.num_unshared_tokens),
            "num_fresh_tokens": float(self.num_fresh_tokens),
        }
        for key, name in (("correction", "correction_mean"), ("kl_reference", "kl_reference")):
            if key in self.terms:
                metrics[name] = self.terms[key] / num
        if self.num_fresh_tokens:
            metrics["mismatch_mean"] = self.mismatch / self.num_fresh_tokens
            metrics["mismatch_max"] = self.mismatch_max
        return metrics
