"""The optimizer: what one step does with a gradient."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any, cast

import torch

from headway.core.check import Mismatch, convert
from headway.core.errors import HeadwayError
from headway.core.protocols import OptimSettings
from headway.core.settings import Rule
from headway.trainer.schedule import learning_rate
from headway.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch import Tensor


class Update:
    """AdamW over the trained parameters, with clipping, and steps that are not finite skipped."""

    def __init__(self, parameters: Sequence[Tensor], settings: TrainerSettings) -> None:
        self._parameters = list(parameters)
        self._settings = settings
        self.num_nonfinite = 0  # steps in a row that were skipped
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def apply(
        self, step: int, loss: float, given: OptimSettings | None = None, lr_scale: float = 1.0
    ) -> dict[str, float]:
        """Clip the parameters' gradient and apply it; `step` is the number of this step, the first being 1.

        Nothing moves when `loss` or the gradient is not finite. Returns `grad_norm` before clipping,
        `learning_rate` and `nonfinite`.
        """
        own, given = self._settings, given or OptimSettings()
        rate = _or(given.learning_rate, learning_rate(own, step)) * lr_scale
        limit = _or(given.max_grad_norm, own.max_grad_norm)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit).item()
        finite = math.isfinite(norm) and math.isfinite(loss)
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
                group["betas"] = (_or(given.beta1, own.beta1), _or(given.beta2, own.beta2))
                group["eps"] = _or(given.eps, own.eps)
                group["weight_decay"] = _or(given.weight_decay, own.weight_decay)
            self._optimizer.step()
        self.num_nonfinite = 0 if finite else self.num_nonfinite + 1
        return {"grad_norm": norm, "learning_rate": rate, "nonfinite": float(not finite)}

    def forget(self) -> None:
        """Forget the gradient."""
        self._optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def others_set_aside(self, *, forget: bool = False) -> Generator[None]:
        """Add to the gradient inside the block; when that raises, the gradient is as it was before it.

        With `forget` what was there before it is dropped once the block has ended.
        """
        others = [p.grad for p in self._parameters]
        self.forget()
        try:
            yield
        except BaseException:
            for parameter, other in zip(self._parameters, others, strict=True):
                parameter.grad = other
            raise
        if forget:
            return
        for parameter, other in zip(self._parameters, others, strict=True):
            if other is not None:
                parameter.grad = other if parameter.grad is None else other.add_(parameter.grad)

    def capture(self) -> dict[str, Any]:
        """Return a copy of what a checkpoint holds of it."""
        return {"num_nonfinite": self.num_nonfinite, "optimizer": _copied(self._optimizer.state_dict())}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `capture` returned, with the settings of this one."""
        own = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, settings in zip(self._optimizer.param_groups, own, strict=True):
            group.update(settings)
        self.num_nonfinite = state["num_nonfinite"]

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors."""
        return tensor_bytes(self._optimizer.state_dict())


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors in tables and lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(tensor_bytes, cast("dict[Any, Any]", value).values()))
    return sum(map(tensor_bytes, cast("list[Any]", value))) if isinstance(value, list) else 0


def check_optim(given: OptimSettings | None, lr_scale: float) -> None:
    """Raise HeadwayError, naming the field, for settings of one step out of the bounds of TrainerSettings."""
    rules = {own.name: own.metadata["rule"] for own in dataclasses.fields(TrainerSettings)}
    rules["learning_rate"] = Rule(ge=0)  # a step that moves nothing is one
    named = {} if given is None else {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
    checked = [(name, value, rules[name]) for name, value in named.items() if value is not None]
    for name, value, rule in [*checked, ("lr_scale", lr_scale, Rule(ge=0))]:
        try:
            convert(value, float, rule)
        except Mismatch as error:
            raise HeadwayError(f"{name} of an optimizer step {error.rule}", value=value) from error


def _or(given: float | None, own: float) -> float:
    return own if given is None else given


def _copied(value: Any) -> Any:
    """Return an optimizer's state with tensors of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in cast("list[Any]", value)]
    return value
