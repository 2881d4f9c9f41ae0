"""A tiny random model of each family, made by transformers, f32; biases and norms are random too."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

VOCAB = 97
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "head_dim": 8,
}
VARIANTS = {
    "llama": (LlamaConfig, {"head_dim": 8}),
    "llama untied": (LlamaConfig, {"tie_word_embeddings": False}),
    "llama multi-head": (LlamaConfig, {"num_key_value_heads": 6}),
    "llama wide heads": (LlamaConfig, {"head_dim": 16}),
    "llama3 rope": (LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2Config, {}),
    "qwen2 untied": (Qwen2Config, {"tie_word_embeddings": False}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "qwen3 biases": (Qwen3Config, {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": False}),
    "qwen3 moe": (Qwen3MoeConfig, EXPERTS),
    "qwen3 moe of some layers": (Qwen3MoeConfig, EXPERTS | {"mlp_only_layers": [0], "norm_topk_prob": False}),
    "qwen3 moe every second": (Qwen3MoeConfig, EXPERTS | {"decoder_sparse_step": 2, "num_hidden_layers": 4}),
}
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3 moe")  # one variant each


def make_config(variant, **changes):
    """Return the transformers configuration of a variant."""
    kind, own = VARIANTS[variant]
    common = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return kind(**(common | own | changes))


def make_model(variant="llama", seed=0, **changes):
    """Return a model of a variant, in eval mode."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        make_config(variant, **changes), attn_implementation="sdpa", dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif name.endswith("mlp.gate.weight"):
                parameter.copy_(torch.randn_like(parameter))
    return model.eval()
