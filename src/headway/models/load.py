"""Load a checkpoint, and tell its facts without loading it. torch is imported when a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headway.core.errors import ModelError
from headway.models.checkpoint import verify
from headway.models.progress import no_progress_bars
from headway.models.shape import ModelShape, read_shape
from headway.models.tensors import weight_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from headway.core.facts import ModelFacts

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16", "float64")


def load_causal_lm(path: Path, dtype: Dtype = "float32") -> PreTrainedModel:
    """Load the checkpoint directory `path`, verified, on the CPU and in eval mode.

    It is of transformers' own class for the family. Attention is PyTorch's scaled dot-product attention.
    Remote code never runs.

    Args:
        path: a checkpoint directory, as `resolve` returns it.
        dtype: type of the parameters, whatever the type on disk.

    Raises:
        ModelError: the checkpoint is incomplete or of an unsupported family.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(DTYPES)}", value=dtype, remedy="Name one of these")
    verify(path)

    import torch
    from transformers import AutoModelForCausalLM

    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
        )
    return model.eval()


def model_facts(path: Path) -> ModelFacts:
    """Return the shape and parameter count of the checkpoint directory `path`, from config.json alone."""
    return read_shape(path).facts()


def load_state(path: Path) -> tuple[ModelShape, dict[str, Tensor]]:
    """Load a checkpoint's shape and tensors without transformers, which takes seconds to import.

    Returns:
        The shape, and its tensors by name, float32. A tied output layer is left out.

    Raises:
        ModelError: the checkpoint is incomplete or of an unsupported family.
    """
    verify(path)

    from safetensors.torch import load_file

    shape = read_shape(path)
    wanted = shape.tensor_shapes()
    state: dict[str, Tensor] = {}
    for file in weight_files(path):
        state |= {name: tensor.float() for name, tensor in load_file(file).items() if name in wanted}
    return shape, state


def finite_tensors(state: Mapping[str, Tensor]) -> tuple[list[str], str]:
    """Return the names of tensors that hold NaN or an infinity, and the version of torch."""
    import torch

    bad = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    return bad, str(torch.__version__)
