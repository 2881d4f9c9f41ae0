"""Chat templates of the supported model families, each with a tokenizer whose decode-encode is no identity.

The templates below `templates/` are written after the published ones of the families, so that tests meet
what those do: they trim, they rewrite JSON, they leave reasoning out of earlier turns, they refuse.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headway.renderers.chat import Renderer

TEMPLATES = Path(__file__).parent / "templates"
LLAMA = ("llama31", "llama32")
QWEN = ("qwen25", "qwen3", "qwen3_thinking")
CHATML = ("smollm2", "chatml")
FAMILIES = (*LLAMA, *QWEN, *CHATML)

_SPECIAL = {
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>",
              "<|end_header_id|>", "<|python_tag|>"],
    "chatml": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}  # fmt: skip
_ENDS = {"llama": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], "chatml": ["<|endoftext|>", "<|im_end|>"]}
_MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
_MERGES = (("a", "b"), ("Ċ", "Ċ"), ("}", "}"), ('"', ":"), ("Ġ", "{"))


def write_family(folder, family, *, special_markers=False):
    """Write the tokenizer and template of a family; its markers are ordinary added tokens, as in Qwen's."""
    kind = "llama" if family in LLAMA else "chatml"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: at for at, token in enumerate([*alphabet, *("".join(pair) for pair in _MERGES)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL[kind])
    if family in QWEN:
        added = [AddedToken(name, normalized=False, special=special_markers) for name in _MARKERS]
        tokenizer.add_special_tokens(added) if special_markers else tokenizer.add_tokens(added)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    begin, end = ("<|begin_of_text|>", "<|eot_id|>") if kind == "llama" else ("<|endoftext|>", "<|im_end|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": begin, "eos_token": end}))
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{family}.jinja").read_text())
    ends = [tokenizer.token_to_id(name) for name in _ENDS[kind]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def family_renderer(folder, family, **kwargs):
    return Renderer(write_family(folder, family, **kwargs))
