"""The trainer of one process: `headway.core.protocols.Trainer` on the CPU.

A step consumes rows (references to payloads), waits for nothing and is never blocked by generation: the
caller hands it whole batches, or whole groups of a batch that is not complete yet (`gather`). One batch is
one optimizer step; micro-batches only bound memory.

Several callers may add gradients (`forward_backward`) before one of them applies their sum (`optim_step`).
Invariant: a call that raises leaves the gradient that the others added as it was.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError

from headway.core.errors import HeadwayError, UserError
from headway.core.protocols import StepResult
from headway.core.storage import disk_full, is_full, no_room
from headway.trainer import checkpoints
from headway.trainer.batch_wide import BatchWide
from headway.trainer.exact import ExactPolicy
from headway.trainer.gathered import Gathered
from headway.trainer.passes import Passes, Version
from headway.trainer.policy import TrainedPolicy
from headway.trainer.routing import check_routes
from headway.trainer.sequences import count, fetch_rows
from headway.trainer.update import Update, tensor_bytes
from headway.weights.manifest import read_manifest
from headway.weights.publish import version_name, write_adapter, write_full

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Row
    from headway.core.protocols import OptimSettings
    from headway.trainer.ranks import Ranks
    from headway.trainer.sequences import FetchedRow
    from headway.trainer.settings import TrainerSettings
    from headway.trainer.sums import BatchSums

MAX_NONFINITE_STEPS = 3  # in a row
_STATE = "trainer.pt"


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
        self._checkpoint_dir = checkpoint_dir
        self._keep_checkpoints = keep_checkpoints
        self._keep_every_steps = keep_every_steps
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
        self._passes = Passes(self._policy, settings, algorithm, self._take_threads)
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

        Raises HeadwayError for rows that cannot be trained, and when more than MAX_NONFINITE_STEPS steps in
        a row were not finite.
        """
        if num_gathered:
            sums = self._complete(rows, num_gathered)
        else:
            fetched = self._fetch(rows)
            self.zero_grad()
            sums = self._forward_backward(fetched, self._batch_wide(fetched))
        metrics = sums.metrics() | self.optim_step(lr_scale=lr_scale)
        if (num := self._update.num_nonfinite) > MAX_NONFINITE_STEPS:
            names = ", ".join(row.rollout for row in rows[:8])
            rule = f"loss and gradient must be finite; {num} steps in a row were not, the last {self._steps}"
            remedy = f"Its first rollouts are {names}. A lower trainer.learning_rate may help"
            raise HeadwayError(rule, value=(metrics["loss"], metrics["grad_norm"]), remedy=remedy)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return StepResult(sums.num_tokens, sums.num_trained_tokens, finite)

    def gather(self, rows: Sequence[Row]) -> int:
        """Add the gradient of whole groups to the next step, whose batch is not complete yet.

        Returns the tokens that went through the model. The gradient lacks the batch's divisor until `step`
        has the rest of the batch. Raises UserError where the algorithm needs the whole batch first,
        HeadwayError for rows that cannot be trained.
        """
        self.check_gathers()
        fetched = self._fetch(rows, whole=False)
        part = count(fetched, of_part=True)
        if self._gathered is None:
            self.zero_grad()
            self._gathered = Gathered()
        before = self._gathered
        denominators = before.denominators + part
        sums = self._forward_backward(fetched, BatchWide(part))
        before.rows += rows
        before.denominators = denominators
        before.sums.merge(sums)
        return sums.num_tokens

    def _complete(self, rows: Sequence[Row], num_gathered: int) -> BatchSums:
        """Gather the rest of a batch, and divide the gradient by what only the whole batch tells."""
        rest = (self._gathered or Gathered()).check(rows, num_gathered)
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

    def forward(
        self, rows: Sequence[Row], policy: Literal["policy", "reference"] = "policy"
    ) -> list[list[Tensor]]:
        """Return log-probs of the trained tokens, nats, for each row and each of its samples, [k].

        `reference` is the checkpoint that the run began from; it raises HeadwayError with full fine-tuning.
        """
        if policy == "reference":
            with self._policy.as_reference():
                return self.forward(rows)
        return self._logprobs(self._fetch(rows))

    def batch_wide(self, rows: Sequence[Row]) -> BatchWide:
        """Return what only a whole optimizer batch tells: denominators and the batch-wide halves' answers."""
        return self._batch_wide(self._fetch(rows))

    def forward_backward(self, rows: Sequence[Row], wide: BatchWide) -> BatchSums:
        """Add the gradient of a part of a batch; parts in any split and order add up to the whole's.

        What other callers added is set aside meanwhile, which takes the memory of one more gradient: when
        this call raises, theirs is as it was, and nothing of this call is left.
        """
        self._check_not_gathering("forward_backward")
        fetched = self._fetch(rows)
        parameters = list(self._policy.trainable().values())
        others = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            sums = self._forward_backward(fetched, wide)
        except BaseException:
            for parameter, other in zip(parameters, others, strict=True):
                parameter.grad = other
            raise
        for parameter, other in zip(parameters, others, strict=True):
            if other is not None:
                parameter.grad = other if parameter.grad is None else other.add_(parameter.grad)
        return sums

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

        Raises HeadwayError when there is no gradient to apply.
        """
        self.check_gradient()
        if self._ranks is not None:
            self._ranks.sum_gradients(list(self._policy.trainable().values()))
        metrics = self._update.apply(self._steps + 1, self._loss_sum, settings, lr_scale)
        self._steps += 1
        self.zero_grad()
        return metrics

    def check_gradient(self) -> None:
        """Raise HeadwayError when there is no gradient that a step may apply."""
        self._check_not_gathering("optim_step")
        if not self._num_parts:
            rule = "an optimizer step needs a gradient: nothing was added since the last one"
            raise HeadwayError(rule, value=self._steps, remedy="Call forward_backward before optim_step")

    def publish(self, lineage: int, number: int) -> tuple[str, int]:
        """Write the weights for replicas, atomically; return (manifest, bytes).

        Raises DiskFullError when there is no room for them.
        """
        if number != self._steps:
            rule = f"a version's number must be the {self._steps} optimizer steps applied"
            raise HeadwayError(rule, value=number)
        tensors = self._policy.published()
        try:
            path = self._write_version(lineage, number, tensors)
        except (OSError, SafetensorError) as error:
            needed = tensor_bytes(tensors)
            full = error if is_full(error) else no_room(self._weights_dir, needed)
            if full is None:
                raise
            raise disk_full(self._weights_dir / version_name(lineage, number), needed, full) from error
        self._lineage = lineage
        return str(path), read_manifest(path).num_bytes

    def publish_to(self, weights_dir: Path) -> None:
        """Publish versions there from now on."""
        self._weights_dir = weights_dir

    def save(self, step: int, *, lineage: int = 0) -> str:
        """Write a checkpoint, whole or not at all, and drop the oldest; return its path."""
        path = self.capture(step, lineage=lineage)()
        self.retain(step)
        return path

    def _write_version(self, lineage: int, number: int, tensors: Mapping[str, Tensor]) -> Path:
        if self._settings.full:
            return write_full(self._weights_dir, lineage, number, tensors)
        return write_adapter(
            self._weights_dir,
            lineage,
            number,
            tensors,
            rank=self._settings.lora_rank,
            alpha=self._settings.lora_alpha,
            base_model=self._policy.base_model_name,
        )

    def capture(self, step: int, *, lineage: int = 0) -> Callable[[], str]:
        """Copy everything that a checkpoint holds, and return what writes it, whole or not at all.

        The copy takes as much memory again as the trained weights and the optimizer's state do. It may be
        written in any thread while the trainer goes on; that returns the checkpoint's path, and raises
        DiskFullError when there is no room for it, HeadwayError when it cannot be written otherwise.
        """
        if step != self._steps:
            rule = f"a checkpoint's step must be the {self._steps} optimizer steps applied"
            raise HeadwayError(rule, value=step)
        facts = {"kind": "full" if self._settings.full else "lora"}
        write_policy = self._policy.capture()
        num_bytes = tensor_bytes(self._policy.trainable()) + self._update.num_bytes
        state = {
            "steps": self._steps,
            "rng": torch.get_rng_state(),
            **self._update.capture(),
        }

        def write() -> str:
            path = checkpoints.checkpoint_path(self._checkpoint_dir, step)
            try:
                with checkpoints.writing(self._checkpoint_dir, step, facts, lineage=lineage) as staging:
                    write_policy(staging)
                    torch.save(state, staging / _STATE)
            except (OSError, RuntimeError, SafetensorError) as error:  # torch does not say "disk full"
                full = error if is_full(error) else no_room(self._checkpoint_dir, num_bytes)
                if full is not None:
                    raise disk_full(path, num_bytes, full) from error
                rule = f"the checkpoint {path} must be written"
                remedy = "Mend that, then go on with `headway resume`"
                raise HeadwayError(rule, value=str(error).split("\n")[0], remedy=remedy) from error
            return str(path)

        return write

    def retain(self, step: int, also: Collection[int] = ()) -> None:
        """Drop checkpoints beyond the newest few up to `step`, and those of a branch that was lost.

        Milestones stay, and those of the steps `also`.
        """
        checkpoints.retain(
            self._checkpoint_dir, step, self._keep_checkpoints, every=self._keep_every_steps, also=also
        )

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints of steps that are lost because the run goes on from `step`."""
        checkpoints.discard_after(self._checkpoint_dir, step)

    def load(self, path: str) -> None:
        """Go on exactly from a checkpoint: the next step is the same to the bit.

        Settings of the optimizer are those of this trainer, which may differ from the checkpoint's.

        Raises HeadwayError when the checkpoint is incomplete or damaged, UserError when it is of another
        model.
        """
        directory = Path(path)
        checkpoints.read_checkpoint(directory, hashes=True)
        self._policy.load(directory)
        state: dict[str, Any] = torch.load(directory / _STATE, weights_only=True)
        self._update.load(state)
        torch.set_rng_state(state["rng"])
        self._steps = state["steps"]
        self._lineage = None
        self.zero_grad()

    def check(self, rows: Sequence[Row], *, whole: bool = True) -> None:
        """Raise HeadwayError for rows that cannot be trained."""
        self._fetch(rows, whole=whole)

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

    def _forward_backward(self, fetched: Sequence[FetchedRow], wide: BatchWide) -> BatchSums:
        """Add this process's share of the rows' gradient, and return the sums of all."""
        ranks = self._ranks
        sums = self._passes.forward_backward(
            fetched if ranks is None else ranks.share(fetched), wide, self._version
        )
        if ranks is not None:
            sums = ranks.merged(sums)
        self._loss_sum += sums.loss
        self._num_parts += 1
        return sums

    def _batch_wide(self, fetched: Sequence[FetchedRow]) -> BatchWide:
        return self._passes.batch_wide(fetched, self._version, self._logprobs)

    def _logprobs(self, fetched: Sequence[FetchedRow]) -> list[list[Tensor]]:
        """Return log-probs of the trained tokens, for each row and sample; ranks share the work."""
        ranks = self._ranks
        mine = fetched if ranks is None else ranks.share(fetched)
        flat = iter(self._passes.logprobs(mine, self._version)) if mine else iter(())
        found = [[next(flat) for _ in item.samples] for item in mine]
        return found if ranks is None else ranks.gathered(fetched, found)

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
