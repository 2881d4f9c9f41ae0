"""Write a model as a directory that transformers loads, its surroundings taken from the base model's.

Config, generation config, tokenizer and chat template are the base model's files, copied; only the type of
the weights is said anew. torch and transformers are not needed to copy; torch is to write weights.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Literal

from headway.models.shape import read_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

ExportDtype = Literal["float32", "bfloat16", "float16"]
SHARD = "5GB"  # the size that save_pretrained begins a new file at

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
_TEMPLATES = "additional_chat_templates"
_GENERATION = "generation_config.json"


def copy_tokenizer(base: Path, target: Path) -> None:
    """Copy the tokenizer's files and the chat templates of the checkpoint `base`."""
    for name in _TOKENIZER:
        if (base / name).is_file():
            shutil.copyfile(base / name, target / name)
    if (base / _TEMPLATES).is_dir():
        shutil.copytree(base / _TEMPLATES, target / _TEMPLATES)


def write_model(
    base: Path,
    weights: Mapping[str, Tensor],
    target: Path,
    dtype: ExportDtype = "float32",
    shard_size: str = SHARD,
) -> None:
    """Write a whole model into the directory `target`, which is there.

    Args:
        base: checkpoint directory that config and tokenizer are taken from.
        weights: by Hugging Face name, a tied output layer left out.
        target: directory to fill.
        dtype: type of the stored weights.
        shard_size: beyond it the weights go into several files, with an index.
    """
    import torch
    from huggingface_hub import save_torch_state_dict

    wanted: torch.dtype = getattr(torch, dtype)
    config = read_config(base)
    names = [name for name in ("dtype", "torch_dtype") if name in config] or ["torch_dtype"]
    config |= dict.fromkeys(names, dtype)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if (base / _GENERATION).is_file():
        shutil.copyfile(base / _GENERATION, target / _GENERATION)
    copy_tokenizer(base, target)
    stored = {name: tensor.to(wanted).contiguous() for name, tensor in weights.items()}
    save_torch_state_dict(stored, target, max_shard_size=shard_size)
    for file in target.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors lets nobody else read them
