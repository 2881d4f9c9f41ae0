"""Models of random weights that benchmarks share."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

_SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
_SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def random_llama(*, small: bool = False) -> LlamaForCausalLM:
    """Return a Llama of SmolLM2-135M's shape, or one of 0.6M parameters."""
    torch.manual_seed(0)
    shape = _SMALL if small else _SMOLLM2
    config = LlamaConfig(**shape, max_position_embeddings=2048, tie_word_embeddings=True)
    return LlamaForCausalLM(config).eval()
