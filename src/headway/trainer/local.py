"""The trainer of one process: `headway.core.protocols.Trainer` on the CPU.

A step consumes rows (references to payloads), waits for nothing and is never blocked by generation: the
caller hands it whole batches. One batch is one optimizer step; micro-batches only bound memory.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from safetensors import SafetensorError

from headway.core.errors import HeadwayError
from headway.core.protocols import StepResult
from headway.core.storage import disk_full, is_full, no_room
from headway.trainer import checkpoints
from headway.trainer.exact import ExactPolicy
from headway.trainer.passes import Passes, Version
from headway.trainer.policy import TrainedPolicy
from headway.trainer.routing import check_routes
from headway.trainer.schedule import learning_rate
from headway.trainer.sequences import fetch_rows
from headway.weights.manifest import read_manifest
from headway.weights.publish import version_name, write_adapter, write_full

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Row
    from headway.trainer.batch_wide import BatchWide
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
        self._passes = Passes(self._policy, settings, algorithm, self._take_threads)
        self._optimizer = torch.optim.AdamW(
            self._policy.trainable().values(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._steps = 0  # optimizer steps applied: the number of the version being trained
        self._lineage: int | None = None  # of the last publication; unknown before it and after a load
        self._num_nonfinite = 0  # steps in a row that were skipped
        self._loss_sum = 0.0  # since the last optimizer step

    @property
    def steps(self) -> int:
        """Optimizer steps applied, skipped ones included."""
        return self._steps

    def step(self, rows: Sequence[Row], lr_scale: float = 1.0) -> StepResult:
        """Take one optimizer step on a whole batch; `lr_scale` multiplies the learning rate.

        A step whose loss or gradient is not finite leaves the weights as they are, counts as a step (the
        version's number rises) and reports `nonfinite` 1; metrics that are not finite are left out.

        Raises HeadwayError for rows that cannot be trained, and when more than MAX_NONFINITE_STEPS steps in
        a row were not finite.
        """
        fetched = self._fetch(rows)
        self.zero_grad()
        sums = self._forward_backward(fetched, self._passes.batch_wide(fetched, self._version))
        metrics = sums.metrics() | self.optim_step(lr_scale)
        if (num := self._num_nonfinite) > MAX_NONFINITE_STEPS:
            names = ", ".join(row.rollout for row in rows[:8])
            rule = f"loss and gradient must be finite; {num} steps in a row were not, the last {self._steps}"
            remedy = f"Its first rollouts are {names}. A lower trainer.learning_rate may help"
            raise HeadwayError(rule, value=(metrics["loss"], metrics["grad_norm"]), remedy=remedy)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return StepResult(sums.num_tokens, sums.num_trained_tokens, finite)

    def forward(
        self, rows: Sequence[Row], policy: Literal["policy", "reference"] = "policy"
    ) -> list[list[Tensor]]:
        """Return log-probs of the trained tokens, nats, for each row and each of its samples, [k].

        `reference` is the checkpoint that the run began from; it raises HeadwayError with full fine-tuning.
        """
        if policy == "reference":
            with self._policy.as_reference():
                return self.forward(rows)
        fetched = self._fetch(rows)
        flat = iter(self._passes.logprobs(fetched, self._version))
        return [[next(flat) for _ in item.samples] for item in fetched]

    def batch_wide(self, rows: Sequence[Row]) -> BatchWide:
        """Return what only a whole optimizer batch tells: denominators and the batch-wide halves' answers."""
        return self._passes.batch_wide(self._fetch(rows), self._version)

    def forward_backward(self, rows: Sequence[Row], wide: BatchWide) -> BatchSums:
        """Add the gradient of a part of a batch; parts in any split and order add up to the whole's."""
        return self._forward_backward(self._fetch(rows), wide)

    def zero_grad(self) -> None:
        """Forget the gradient gathered so far."""
        self._optimizer.zero_grad(set_to_none=True)
        self._loss_sum = 0.0

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient gathered so far, by parameter name."""
        return {name: p.grad for name, p in self._policy.trainable().items() if p.grad is not None}

    def optim_step(self, lr_scale: float = 1.0) -> dict[str, float]:
        """Clip the gathered gradient, apply it at `lr_scale` times the learning rate, and forget it.

        Returns:
            `grad_norm` before clipping, `learning_rate`, and `nonfinite`: 1 when the update was skipped.
        """
        parameters = list(self._policy.trainable().values())
        rate = learning_rate(self._settings, self._steps + 1) * lr_scale
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm).item()
        finite = math.isfinite(norm) and math.isfinite(self._loss_sum)
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self._num_nonfinite = 0 if finite else self._num_nonfinite + 1
        self._steps += 1
        self.zero_grad()
        return {"grad_norm": norm, "learning_rate": rate, "nonfinite": float(not finite)}

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
            needed = _tensor_bytes(tensors)
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
        num_bytes = _tensor_bytes(self._policy.trainable()) + _tensor_bytes(self._optimizer.state_dict())
        state = {
            "steps": self._steps,
            "num_nonfinite": self._num_nonfinite,
            "optimizer": _copied(self._optimizer.state_dict()),
            "rng": torch.get_rng_state(),
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
        own = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, settings in zip(self._optimizer.param_groups, own, strict=True):
            group.update(settings)
        torch.set_rng_state(state["rng"])
        self._steps = state["steps"]
        self._num_nonfinite = state["num_nonfinite"]
        self._lineage = None
        self.zero_grad()

    @property
    def _version(self) -> Version:
        return Version(self._steps, self._lineage)

    def _fetch(self, rows: Sequence[Row]) -> list[FetchedRow]:
        fetched = fetch_rows(rows, self._payload_dir, self._policy.vocab)
        if self._policy.experts is not None:
            check_routes(fetched, self._policy.experts)
        return fetched

    def _forward_backward(self, fetched: Sequence[FetchedRow], wide: BatchWide) -> BatchSums:
        sums = self._passes.forward_backward(fetched, wide, self._version)
        self._loss_sum += sums.loss
        return sums

    def set_threads(self, num_threads: int) -> None:
        """Compute with this many CPU threads from the next micro-batch on; callable from any thread."""
        self._threads = num_threads

    def _take_threads(self) -> None:
        """Set the thread count in the computing thread, where alone it has an effect."""
        if self._threads and self._threads != torch.get_num_threads():
            torch.set_num_threads(self._threads)


def _copied(value: Any) -> Any:
    """Return an optimizer's state with tensors of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in cast("list[Any]", value)]
    return value


def _tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors in tables and lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_tensor_bytes, cast("dict[Any, Any]", value).values()))
    return sum(map(_tensor_bytes, cast("list[Any]", value))) if isinstance(value, list) else 0


def _loaded(model: Path | str | PreTrainedModel) -> PreTrainedModel:
    if not isinstance(model, (Path, str)):
        return model
    from headway.models.load import load_causal_lm

    return load_causal_lm(Path(model))
