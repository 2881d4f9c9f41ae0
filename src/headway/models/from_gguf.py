"""Convert a GGUF file of the Llama family to a Hugging Face checkpoint directory. No torch.

Weights are dequantised and stored as bfloat16, the type of the checkpoints that such files are made from: a
file half the size of float32, at a rounding error (2^-9 relative) far below that of 4-bit quantisation.

llama.cpp stores the query and key projections with the rows of each head reordered, for its way of applying
rotary positions; the order is put back here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.core.errors import ModelError
from headway.models.families import LLAMA
from headway.models.progress import Progress, silent
from headway.models.shape import read_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gguf import GGUFReader
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3


def convert(source: Path, target: Path, progress: Progress = silent) -> None:
    """Write weights, config and tokenizer of the GGUF file `source` into the directory `target`."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    _require(metadata, "general.architecture", ("llama",))
    config = llama_config(metadata, {tensor.name for tensor in reader.tensors})
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_generation_config(target, config)
    progress("Converting the tokenizer")
    write_tokenizer(metadata, target)
    progress("Converting the weights to bfloat16")
    _write_weights(reader, config, target)


def llama_config(metadata: Mapping[str, Any], tensors: set[str]) -> dict[str, Any]:
    """Return the contents of `config.json` from a GGUF file's metadata and tensor names."""
    hidden = int(metadata["llama.embedding_length"])
    heads = int(metadata["llama.attention.head_count"])
    head_dim = int(metadata.get("llama.attention.key_length", hidden // heads))
    epsilon = np.float32(metadata["llama.attention.layer_norm_rms_epsilon"])
    if any(name.startswith("llama.rope.scaling") for name in metadata) or "rope_freqs.weight" in tensors:
        rule = "A GGUF file must use plain rotary positions; scaled ones cannot be converted"
        raise ModelError(rule, remedy="Use the model's Hugging Face checkpoint instead")
    theta = float(metadata.get("llama.rope.freq_base", 10000.0))
    config: dict[str, Any] = {
        "architectures": [LLAMA.architecture],
        "model_type": LLAMA.model_type,
        "hidden_size": hidden,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": int(metadata["llama.context_length"]),
        "rms_norm_eps": float(str(epsilon)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "bfloat16",
    }
    for name in ("bos", "eos", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            config[f"{name.replace('padding', 'pad')}_token_id"] = int(metadata[key])
    return config


def tensor_name(name: str) -> str:
    """Map a GGUF tensor name to the Hugging Face name: `blk.0.attn_q.weight` to `model.layers.0....`."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{kind}"
    raise ModelError(
        "Each tensor of the GGUF file must belong to a dense Llama model",
        value=name,
        remedy="Use the model's Hugging Face checkpoint instead",
    )


def unpermute(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Put a q or k projection's rows back in Hugging Face order.

    llama.cpp interleaves the two halves of each head (rows 0, d/2, 1, d/2+1, ...); Hugging Face keeps the
    halves apart.

    Args:
        weight: (num_heads * head_dim, hidden), as stored in the GGUF file.
        num_heads: heads of this projection: query heads for q, key/value heads for k.

    Returns:
        The same shape, rows reordered within each head.
    """
    half = weight.shape[0] // num_heads // 2
    pairs = weight.reshape(num_heads, half, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def to_bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to bfloat16, ties to even, and return the bits; the values must be finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _write_weights(reader: GGUFReader, config: dict[str, Any], target: Path) -> None:
    from gguf.quants import dequantize

    expected = read_shape(target).tensor_shapes()
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    stored: dict[str, NDArray[np.uint16]] = {}
    for tensor in reader.tensors:
        name = tensor_name(tensor.name)
        # GGUF lists dimensions from the innermost outwards.
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if shape != expected.get(name):
            rule = f"Tensor {tensor.name} must have the shape {expected.get(name)}"
            raise ModelError(rule, value=shape, remedy="The GGUF file is damaged: get it again")
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
        for projection, key in heads.items():
            if f"{projection}.weight" in name:
                weight = unpermute(weight, config[key])
        stored[name] = to_bfloat16_bits(weight)
    if missing := sorted(expected.keys() - stored.keys()):
        raise ModelError(
            "The GGUF file must hold every tensor of the model",
            value=missing[:5],
            remedy="It was cut off, or is a part of several: fetch it again, as one file",
        )
    write_bfloat16(target / "model.safetensors", stored)


def write_bfloat16(file: Path, tensors: Mapping[str, NDArray[np.uint16]]) -> None:
    """Write a safetensors file of bfloat16 tensors, given as their bits: numpy has no such type."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": (end, end + bits.nbytes)}
        end += bits.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The format asks for data that begins at a multiple of eight bytes.
    encoded += b" " * (-len(encoded) % 8)
    with file.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for bits in tensors.values():
            stream.write(bits.tobytes())


def _write_generation_config(target: Path, config: dict[str, Any]) -> None:
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    (target / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")


def write_tokenizer(metadata: Mapping[str, Any], target: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja from a GGUF file's metadata."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    build_tokenizer(metadata).save(str(target / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(metadata["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            settings[f"{name}_token"] = tokens[int(number)]
    (target / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    if template := metadata.get("tokenizer.chat_template"):
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the byte-level BPE tokenizer; ModelError for another kind than SmolLM's or GPT-2's."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    _require(metadata, "tokenizer.ggml.model", ("gpt2",))
    kind = _require(metadata, "tokenizer.ggml.pre", ("smollm", "gpt-2"))
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, fuse_unk=False))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of])  # pyright: ignore[reportAttributeAccessIssue]
    else:
        tokenizer.pre_tokenizer = bytes_of  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)  # pyright: ignore[reportAttributeAccessIssue]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def _require(metadata: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    value = metadata.get(key)
    if value not in allowed:
        rule = f"The GGUF file's {key} must be {' or '.join(allowed)}"
        raise ModelError(rule, value=value, remedy="Use the model's Hugging Face checkpoint instead")
    return str(value)
