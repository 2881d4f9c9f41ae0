"""Load a checkpoint, and tell its facts without loading it. torch is imported when a model is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal

from headway.core.errors import ModelError
from headway.core.facts import ModelFacts
from headway.models.checkpoint import verify, weight_files
from headway.models.llama import read_config, read_shape
from headway.models.progress import no_progress_bars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import LlamaForCausalLM

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16", "float64")


def load_causal_lm(path: Path, dtype: Dtype = "float32") -> LlamaForCausalLM:
    """Load the checkpoint directory `path`, verified, on the CPU and in eval mode.

    Attention is PyTorch's scaled dot-product attention. Remote code never runs.

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
    from transformers import LlamaForCausalLM

    with no_progress_bars():
        model = LlamaForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
    return model.eval()


def model_facts(path: Path) -> ModelFacts:
    """Return the shape and parameter count of the checkpoint directory `path`, from config.json alone."""
    shape = read_shape(path)
    return ModelFacts(
        num_params=shape.num_params,
        num_layers=shape.num_layers,
        hidden=shape.hidden,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        vocab=shape.vocab,
        max_context_tokens=shape.max_context_tokens,
    )


def load_state(path: Path) -> tuple[SimpleNamespace, dict[str, Tensor]]:
    """Load a checkpoint's configuration and tensors without transformers, which takes seconds to import.

    Returns:
        The fields of config.json, with the defaults that transformers' LlamaConfig has, and the tensors by
        name, float32. A tied output layer is left out.

    Raises:
        ModelError: the checkpoint is incomplete or of an unsupported family.
    """
    verify(path)

    from safetensors.torch import load_file

    shape = read_shape(path)
    defaults = {
        "num_key_value_heads": shape.num_kv_heads,
        "max_position_embeddings": shape.max_context_tokens,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    state: dict[str, Tensor] = {}
    for file in weight_files(path):
        state |= {name: tensor.float() for name, tensor in load_file(file).items()}
    if shape.tied:
        state.pop("lm_head.weight", None)
    return SimpleNamespace(**{**defaults, **read_config(path)}), state


def finite_tensors(state: Mapping[str, Tensor]) -> tuple[list[str], str]:
    """Return the names of tensors that hold NaN or an infinity, and the version of torch."""
    import torch

    bad = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    return bad, str(torch.__version__)
