"""The models of benchmarks/loop.py.

All models get a chat template that adds nothing to the prompt, so that both sides see the same token ids, and
an end token that is never sampled, so that no answer of either side ends early: in the random models its
logit is far below all others (the learning rate of the measured scenes is too low to change that), and
SmolLM2's copy names a reserved token as its end. Both sides make sure of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from headway.models.cache import cache_root
from headway.models.tiny import END_OF_TEXT, IM_END, VOCAB, write_tokenizer

_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_UNREACHED = "<gh_stars>"  # SmolLM2: a marker of code repositories


def make_model(name: str, folder: Path) -> Path:
    """Return the directory of a scene's model, made in `folder` if it is not there yet."""
    place = folder / name
    if place.exists():
        return place
    staging = folder / f"{name}.part"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    if name == "smollm2":
        _copy_smollm2(staging)
    else:
        _make_random(staging, *((64, 2) if name == "micro" else (128, 4)))
    (staging / "chat_template.jinja").write_text(_TEMPLATE)
    return staging.rename(place)


def _make_random(folder: Path, hidden: int, layers: int) -> None:
    """Write a byte-level Llama of random weights whose end token is never sampled.

    The first coordinate of the residual stream is a constant that no layer reads or writes, and the tied
    output layer turns it into a logit far below the others for the end token alone.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.08, bos_token_id=None, eos_token_id=IM_END, pad_token_id=END_OF_TEXT,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 2.0
        model.model.embed_tokens.weight[IM_END, 0] = -2.0
        model.model.norm.weight[0] = 3.0
        for layer in model.model.layers:
            layer.input_layernorm.weight[0] = layer.post_attention_layernorm.weight[0] = 0.0
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    model.save_pretrained(folder)


def _copy_smollm2(folder: Path) -> None:
    """Copy the fetched SmolLM2 with another end token; raises SystemExit when it is not there."""
    source = cache_root() / "models" / "smollm2"
    if not source.is_dir():
        raise SystemExit("SmolLM2 is not there: `headway model fetch smollm2`, or leave out its scenes")
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    shutil.copy(source / "tokenizer.json", folder)
    added = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    unreached = next(token["id"] for token in added if token["content"] == _UNREACHED)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((source / name).read_text(encoding="utf-8"))
        if name == "tokenizer_config.json":
            settings |= {"eos_token": _UNREACHED, "pad_token": "<|endoftext|>"}
        else:
            settings |= {"eos_token_id": unreached, "pad_token_id": 0}
        (folder / name).write_text(json.dumps(settings))
