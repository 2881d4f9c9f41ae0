"""The optimizer: what one step does with a gradient."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, cast

import torch

from headway.core.errors import HeadwayError
from headway.core.protocols import OptimSettings
from headway.trainer.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from torch import Tensor

    from headway.trainer.settings import TrainerSettings


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
    def others_set_aside(self) -> Generator[None]:
        """Add to the gradient inside the block; when that raises, the gradient is as it was before it."""
        others = [p.grad for p in self._parameters]
        self.forget()
        try:
            yield
        except BaseException:
            for parameter, other in zip(self._parameters, others, strict=True):
                parameter.grad = other
            raise
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


def check_optim(settings: OptimSettings | None, lr_scale: float) -> None:
    """Raise HeadwayError, naming the field, unless the numbers are those that TrainerSettings would take."""
    given = settings or OptimSettings()
    rules: dict[str, tuple[float | None, Callable[[float], bool], str]] = {
        "learning_rate": (given.learning_rate, lambda value: value >= 0, "at least 0"),
        "max_grad_norm": (given.max_grad_norm, lambda value: value > 0, "above 0"),
        "beta1": (given.beta1, lambda value: 0 <= value < 1, "from 0 to below 1"),
        "beta2": (given.beta2, lambda value: 0 <= value < 1, "from 0 to below 1"),
        "eps": (given.eps, lambda value: value > 0, "above 0"),
        "weight_decay": (given.weight_decay, lambda value: value >= 0, "at least 0"),
        "lr_scale": (lr_scale, lambda value: value >= 0, "at least 0"),
    }
    for name, (value, holds, bound) in rules.items():
        if value is not None and not (math.isfinite(value) and holds(value)):
            raise HeadwayError(f"{name} of an optimizer step must be finite and {bound}", value=value)


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors in tables and lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(tensor_bytes, cast("dict[Any, Any]", value).values()))
    return sum(map(tensor_bytes, cast("list[Any]", value))) if isinstance(value, list) else 0


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
