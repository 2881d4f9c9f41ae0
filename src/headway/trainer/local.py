"""The trainer of one process: `headway.core.protocols.Trainer` on the CPU.

A step consumes rows (references to payloads), waits for nothing and is never blocked by generation: the
caller hands it whole batches, or whole groups of a batch that is not complete yet (`gather`). One batch is
one optimizer step; micro-batches only bound memory.

Several callers may add gradients (`forward_backward`) before one of them applies their sum (`optim_step`).
Invariant: a call that raises leaves the gradient that the others added as it was.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from headway.core.errors import HeadwayError, UserError
from headway.core.protocols import StepResult
from headway.trainer.batch_wide import BatchWide
from headway.trainer.exact import ExactPolicy
from headway.trainer.gathered import Gathered, check_divisor
from headway.trainer.keeping import Keeping
from headway.trainer.passes import Passes, Version
from headway.trainer.policy import TrainedPolicy
from headway.trainer.published import write_version
from headway.trainer.routing import check_routes
from headway.trainer.sequences import count, fetch_rows
from headway.trainer.update import Update, check_optim, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from headway.algorithms.normaliser import Denominators
    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Row
    from headway.core.protocols import OptimSettings
    from headway.trainer.ranks import Ranks
    from headway.trainer.sequences import FetchedRow
    from headway.trainer.settings import TrainerSettings
    from headway.trainer.sums import BatchSums

MAX_NONFINITE_STEPS = 3  # in a row


class LocalTrainer:
    """Trains one policy.

    Args:
        model: a checkpoint directory, or a loaded model that this trainer then owns.
        settings: of the trainer; `threads` is set for the whole process.
        algorithm: batch-wide half of the advantage, loss, correction, KL penalty and normaliser.
        payload_dir: where rows' payloads are.
        weights_dir: where versions are published; shared memory or the run directory.
        checkpoint_dir: where checkpoints are written.
        seed: of the LoRA factors' first values.
        keep_checkpoints: newest checkpoints that stay.
        keep_every_steps: checkpoints of a multiple of this stay too, 0 for none.
        exact_context_tokens: compute as an exact generator of this context does (`exact`); 0 for packed rows.
        ranks: of the processes that share each batch, None for this one alone. Then every operation that
            computes is called in all of them, in the same order and with the same arguments.
    """

    def __init__(
        self,
        model: Path | str | PreTrainedModel,
        settings: TrainerSettings,
        algorithm: AlgorithmSettings,
        *,
        payload_dir: Path,
        weights_dir: Path,
        checkpoint_dir: Path,
        seed: int = 0,
        keep_checkpoints: int = 3,
        keep_every_steps: int = 0,
        exact_context_tokens: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self._threads = settings.threads
        self._take_threads()
        self._settings = settings
        self._payload_dir = payload_dir
        self._weights_dir = weights_dir
        self._keeping = Keeping(checkpoint_dir, keep_checkpoints, keep_every_steps)
        self._policy = (
            ExactPolicy(_loaded(model), settings, seed, exact_context_tokens)
            if exact_context_tokens
            else TrainedPolicy(_loaded(model), settings, seed)
        )
        if algorithm.kl_coef > 0:
            with self._policy.as_reference():  # a reference that is not there is found out now
                pass
        self._algorithm = algorithm
        self._ranks = ranks
        self._passes = Passes(self._policy, algorithm, self._take_threads, ranks)
        self._update = Update(list(self._policy.trainable().values()), settings)
        self._steps = 0  # optimizer steps applied: the number of the version being trained
        self._lineage: int | None = None  # of the last publication; unknown before it and after a load
        self._loss_sum = 0.0  # since the last optimizer step
        self._num_parts = 0  # that added a gradient since then
        self._gathered: Gathered | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps applied, skipped ones included."""
        return self._steps

    def step(self, rows: Sequence[Row], lr_scale: float = 1.0, *, num_gathered: int = 0) -> StepResult:
        """Take one optimizer step on a whole batch; `lr_scale` multiplies the learning rate.

        The first `num_gathered` rows were handed to `gather` since the last step, in this order.

        A step whose loss or gradient is not finite leaves the weights as they are, counts as a step (the
        version's number rises) and reports `nonfinite` 1; metrics that are not finite are left out.

        Raises HeadwayError for rows that cannot be trained, and UserError when more than
        MAX_NONFINITE_STEPS steps in a row were not finite: taken again, they would be that again.
        """
        check_optim(None, lr_scale)
        if num_gathered:
            sums = self._complete(rows, num_gathered)
        else:
            fetched = self._fetch(rows)
            wide = self._passes.batch_wide(fetched, self._version)
            sums = self._forward_backward(fetched, wide, anew=True)
            self._gathered = None
        metrics = sums.metrics() | self.optim_step(lr_scale=lr_scale)
        if (num := self._update.num_nonfinite) > MAX_NONFINITE_STEPS:
            names = ", ".join(row.rollout for row in rows[:8])
            rule = f"loss and gradient must be finite; {num} steps in a row were not, the last {self._steps}"
            remedy = f"Its first rollouts are {names}. A lower trainer.learning_rate may help"
            raise UserError(rule, value=(metrics["loss"], metrics["grad_norm"]), remedy=remedy)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return StepResult(sums.num_tokens, sums.num_trained_tokens, finite)

    def gather(self, rows: Sequence[Row]) -> int:
        """Add the gradient of whole groups to the next step, whose batch is not complete yet.

        Returns the tokens that went through the model. The gradient lacks the batch's divisor until `step`
        has the rest of the batch. Raises UserError where the algorithm needs the whole batch first,
        HeadwayError for rows that cannot be trained.
        """
        fetched, part, denominators = self._check_part(rows)
        before = self._gathered or Gathered()
        sums = self._forward_backward(fetched, BatchWide(part), anew=self._gathered is None)
        before.rows += rows
        before.denominators = denominators
        before.sums.merge(sums)
        self._gathered = before
        return sums.num_tokens

    def _check_part(self, rows: Sequence[Row]) -> tuple[list[FetchedRow], Denominators, Denominators]:
        """Return a part of a batch, what it counts, and that with the parts before it."""
        self.check_gathers()
        fetched = self._fetch(rows, whole=False)
        part = count(fetched, of_part=True)
        return fetched, part, (self._gathered or Gathered()).denominators + part

    def _complete(self, rows: Sequence[Row], num_gathered: int) -> BatchSums:
        """Gather the rest of a batch, and divide the gradient by what only the whole batch tells."""
        rest = self._check_complete(rows, num_gathered)
        if rest:
            self.gather(rest)
        assert self._gathered is not None
        whole, self._gathered = self._gathered, None
        scale = whole.close(self._algorithm.normaliser)
        with torch.no_grad():
            for gradient in self._own_gradients().values():
                gradient.mul_(scale)
        self._loss_sum *= scale
        return whole.sums

    def _check_complete(self, rows: Sequence[Row], num_gathered: int) -> Sequence[Row]:
        """Return the rest of a batch; HeadwayError, before it is computed, when no step can come of it."""
        gathered = self._gathered or Gathered()
        rest = gathered.check(rows, num_gathered)
        fetched = self._fetch(rest, whole=False) if rest else []
        check_divisor(self._algorithm.normaliser, gathered.denominators + count(fetched, of_part=True), rows)
        return rest

    def forward(
        self, rows: Sequence[Row], policy: Literal["policy", "reference"] = "policy"
    ) -> list[list[Tensor]]:
        """Return log-probs of the trained tokens, nats, for each row and each of its samples, [k].

        `reference` is the checkpoint that the run began from; it raises HeadwayError with full fine-tuning.
        """
        if policy == "reference":
            with self._policy.as_reference():
                return self.forward(rows)
        return self._passes.logprobs(self._fetch(rows), self._version)

    def batch_wide(self, rows: Sequence[Row]) -> BatchWide:
        """Return what only a whole optimizer batch tells: denominators and the batch-wide halves' answers."""
        return self._passes.batch_wide(self._fetch(rows), self._version)

    def forward_backward(self, rows: Sequence[Row], wide: BatchWide) -> BatchSums:
        """Add the gradient of a part of a batch; parts in any split and order add up to the whole's.

        What other callers added is set aside meanwhile, which takes the memory of one more gradient: when
        this call raises, theirs is as it was, and nothing of this call is left.
        """
        self._check_not_gathering("forward_backward")
        return self._forward_backward(self._fetch(rows), wide)

    def zero_grad(self) -> None:
        """Forget the gradient gathered so far, and the step that was begun."""
        self._update.forget()
        self._loss_sum, self._num_parts, self._gathered = 0.0, 0, None

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient gathered so far, by parameter name; that of all ranks."""
        found = self._own_gradients()
        return found if self._ranks is None else self._ranks.total(self._policy.trainable())

    def optim_step(self, settings: OptimSettings | None = None, *, lr_scale: float = 1.0) -> dict[str, float]:
        """Clip the gathered gradient, apply it at `lr_scale` times the learning rate, and forget it.

        Args:
            settings: in place of the trainer's own, for this step alone.
            lr_scale: what the learning rate is multiplied by.

        Returns:
            `grad_norm` before clipping, `learning_rate`, and `nonfinite`: 1 when the update was skipped.

        Raises HeadwayError when there is no gradient to apply, and for settings out of their bounds.
        """
        self.check_optim_step(settings, lr_scale)
        if self._ranks is not None:
            self._ranks.sum_gradients(list(self._policy.trainable().values()))
        metrics = self._update.apply(self._steps + 1, self._loss_sum, settings, lr_scale)
        self._steps += 1
        self.zero_grad()
        return metrics

    def publish(self, lineage: int, number: int) -> tuple[str, int]:
        """Write the weights for replicas, atomically; return (manifest, bytes).

        Raises DiskFullError when there is no room for them.
        """
        if number != self._steps:
            rule = f"a version's number must be the {self._steps} optimizer steps applied"
            raise HeadwayError(rule, value=number)
        written = write_version(self._weights_dir, lineage, number, self._policy, self._settings)
        self._lineage = lineage
        return written

    def publish_to(self, weights_dir: Path) -> None:
        """Publish versions there from now on."""
        self._weights_dir = weights_dir

    def save(self, step: int, *, lineage: int = 0) -> str:
        """Write a checkpoint, whole or not at all, and drop the oldest; return its path."""
        path = self.capture(step, lineage=lineage)()
        self.retain(step)
        return path

    def capture(self, step: int, *, lineage: int = 0) -> Callable[[], str]:
        """Copy everything that a checkpoint holds, and return what writes it, whole or not at all.

        The copy takes as much memory again as the trained weights and the optimizer's state do. It may be
        written in any thread while the trainer goes on; that returns the checkpoint's path, and raises
        DiskFullError when there is no room for it, HeadwayError when it cannot be written otherwise.
        """
        if step != self._steps:
            rule = f"a checkpoint's step must be the {self._steps} optimizer steps applied"
            raise HeadwayError(rule, value=step)
        state = {"steps": step, "rng": torch.get_rng_state(), **self._update.capture()}
        return functools.partial(
            self._keeping.write,
            step,
            lineage,
            {"kind": "full" if self._settings.full else "lora"},
            self._policy.capture(),
            state,
            tensor_bytes(self._policy.trainable()) + self._update.num_bytes,
        )

    def retain(self, step: int, also: Collection[int] = ()) -> None:
        """Drop checkpoints beyond the newest few up to `step`, and those of a branch that was lost.

        Milestones stay, and those of the steps `also`.
        """
        self._keeping.retain(step, also)

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints of steps that are lost because the run goes on from `step`."""
        self._keeping.discard_after(step)

    def load(self, path: str) -> None:
        """Go on exactly from a checkpoint: the next step is the same to the bit.

        Settings of the optimizer are those of this trainer, which may differ from the checkpoint's.

        Raises HeadwayError when the checkpoint is incomplete or damaged, UserError when it is of another
        model.
        """
        state = self._keeping.read(Path(path), self._policy.load)
        self._update.load(state)
        torch.set_rng_state(state["rng"])
        self._steps = state["steps"]
        self._lineage = None
        self.zero_grad()

    # --- what an operation refuses, and nothing else of it: each raises HeadwayError

    def check(self, rows: Sequence[Row]) -> None:
        """Refuse rows that cannot be trained."""
        self._fetch(rows)

    def check_step(self, rows: Sequence[Row], lr_scale: float, num_gathered: int) -> None:
        """Refuse what `step` does."""
        check_optim(None, lr_scale)
        if num_gathered:
            self._check_complete(rows, num_gathered)
        else:
            self._fetch(rows)

    def check_gather(self, rows: Sequence[Row]) -> None:
        """Refuse what `gather` does."""
        self._check_part(rows)

    def check_forward(self, rows: Sequence[Row], policy: Literal["policy", "reference"]) -> None:
        """Refuse what `forward` does."""
        if policy == "reference":
            with self._policy.as_reference():
                pass
        self._fetch(rows)

    def check_forward_backward(self, rows: Sequence[Row], wide: BatchWide) -> None:
        """Refuse what `forward_backward` does."""
        self._check_not_gathering("forward_backward")
        self._passes.check(self._fetch(rows), wide, self._version)

    def check_optim_step(self, settings: OptimSettings | None, lr_scale: float) -> None:
        """Refuse what `optim_step` does."""
        self._check_not_gathering("optim_step")
        if not self._num_parts:
            rule = "an optimizer step needs a gradient: nothing was added since the last one"
            raise HeadwayError(rule, value=self._steps, remedy="Call forward_backward before optim_step")
        check_optim(settings, lr_scale)

    def check_gathers(self) -> None:
        """Raise UserError where the algorithm needs a whole batch before any gradient."""
        if (what := self._passes.needs_whole_batch) is not None:
            rule = f"a step may not begin before its batch is complete with {what}"
            raise UserError(rule, remedy="Set queue.stream = false", key="queue.stream")

    def trains_on(self, lineage: int) -> None:
        """Take tokens of this life's version for fresh, as after a publication."""
        self._lineage = lineage

    @property
    def _version(self) -> Version:
        return Version(self._steps, self._lineage)

    def _fetch(self, rows: Sequence[Row], *, whole: bool = True) -> list[FetchedRow]:
        fetched = fetch_rows(rows, self._payload_dir, self._policy.vocab, whole=whole)
        if self._policy.experts is not None:
            check_routes(fetched, self._policy.experts)
        return fetched

    def _forward_backward(
        self, fetched: Sequence[FetchedRow], wide: BatchWide, *, anew: bool = False
    ) -> BatchSums:
        """Add a gradient, all or nothing; `anew` in place of what was added before."""
        with self._update.others_set_aside(forget=anew):
            sums = self._passes.forward_backward(fetched, wide, self._version)
        if anew:
            self._loss_sum, self._num_parts = 0.0, 0
        self._loss_sum += sums.loss
        self._num_parts += 1
        return sums

    def _check_not_gathering(self, what: str) -> None:
        """What was gathered lacks the batch's divisor: only `step` may go on with it."""
        if self._gathered is not None:
            rule = f"{what} cannot be called between gather and the step that it began"
            raise HeadwayError(rule, remedy="Call step with the rest of the batch, or zero_grad")

    def _own_gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self._policy.trainable().items() if p.grad is not None}

    def set_threads(self, num_threads: int) -> None:
        """Compute with this many CPU threads from the next micro-batch on; callable from any thread."""
        self._threads = num_threads

    def close(self) -> None:
        """Do nothing: it computes in this process alone."""

    def _take_threads(self) -> None:
        """Set the thread count in the computing thread, where alone it has an effect."""
        if self._threads and self._threads != torch.get_num_threads():
            torch.set_num_threads(self._threads)


def _loaded(model: Path | str | PreTrainedModel) -> PreTrainedModel:
    if not isinstance(model, (Path, str)):
        return model
    from headway.models.load import load_causal_lm

    return load_causal_lm(Path(model))
