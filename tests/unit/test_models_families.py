"""Checkpoints of each family, as save_pretrained writes them: verified, measured and loaded."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.core.errors import ModelError
from headway.models.checkpoint import verify
from headway.models.experts import unfused
from headway.models.load import load_causal_lm, load_state, model_facts
from headway.models.shape import model_shape
from headway.models.tiny import write_tokenizer
from tests.unit.family_models import FAMILIES, VARIANTS, make_model


@pytest.fixture
def saved(tmp_path):
    """Write a variant's checkpoint and return its model and directory."""

    def save(variant, **changes):
        model = make_model(variant, vocab_size=259, **changes)
        model.save_pretrained(tmp_path)
        write_tokenizer(tmp_path)
        return model, tmp_path

    return save


def edit(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def problem(path):
    with pytest.raises(ModelError) as caught:
        verify(path)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_is_whole_and_its_facts_are_the_models(saved, variant):
    model, path = saved(variant)
    verify(path)
    facts = model_facts(path)
    assert facts.num_params == sum(parameter.numel() for parameter in model.parameters())
    shape, state = load_state(path)
    assert shape == model_shape(model.config.to_dict())
    wanted = dict(unfused(model.named_parameters()))
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("variant", FAMILIES)
def test_it_is_loaded_as_transformers_own_class(saved, variant):
    model, path = saved(variant)
    loaded = load_causal_lm(path)
    assert type(loaded) is type(model)
    assert loaded.config._attn_implementation == "sdpa"
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


OF_FAMILY = {
    "llama": "mlp.up_proj.weight",
    "qwen2": "self_attn.k_proj.bias",
    "qwen3": "self_attn.q_norm.weight",
    "qwen3 moe": "mlp.experts.5.down_proj.weight",
}


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_missing_tensor_is_named(saved, variant):
    _, path = saved(variant)
    name = f"model.layers.2.{OF_FAMILY[variant]}"
    edit(path, lambda tensors: tensors.pop(name))
    error = problem(path)
    assert "1 are missing" in error.rule
    assert error.value == name


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_tensor_that_the_family_does_not_have_is_named(saved, variant):
    _, path = saved(variant)
    edit(path, lambda tensors: tensors.update({"model.layers.0.self_attn.o_proj.bias": torch.zeros(48)}))
    error = problem(path)
    assert "1 are extra" in error.rule
    assert error.value == "model.layers.0.self_attn.o_proj.bias"


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_tensor_of_another_shape_is_named(saved, variant):
    _, path = saved(variant)
    name = f"model.layers.1.{OF_FAMILY[variant]}"
    edit(path, lambda tensors: tensors.update({name: torch.zeros(3, 5)}))
    assert f"Tensor {name} must have the shape" in problem(path).rule


def test_a_copy_of_a_tied_output_layer_passes_and_another_one_is_refused(saved):
    _, path = saved("qwen2")
    head = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    edit(path, lambda tensors: tensors.update({"lm_head.weight": head.clone()}))
    verify(path)
    assert "lm_head.weight" not in load_state(path)[1]
    edit(path, lambda tensors: tensors.update({"lm_head.weight": head + 1}))
    assert "the output layer must be the embedding" in problem(path).rule


def test_an_untied_model_without_its_output_layer_is_told_what_to_set(saved):
    _, path = saved("qwen3 biases")
    edit(path, lambda tensors: tensors.pop("lm_head.weight"))
    error = problem(path)
    assert error.value == "lm_head.weight is missing"
    assert "tie_word_embeddings" in error.remedy


def test_a_field_that_config_lacks_is_named(saved):
    _, path = saved("qwen3 moe")
    config = json.loads((path / "config.json").read_text())
    del config["moe_intermediate_size"]
    (path / "config.json").write_text(json.dumps(config))
    assert problem(path).rule == "config.json must give moe_intermediate_size"


def test_configs_as_transformers_4_wrote_them_are_read(saved):
    _, path = saved("llama3 rope")
    config = json.loads((path / "config.json").read_text())
    shape = model_shape(config)
    rope = config.pop("rope_parameters")
    old = config | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    again = model_shape(old)
    assert again.rope_theta == shape.rope_theta
    assert again.rope_scaling.items() >= rope.items()


QWEN = {"vocab_size": 151_936, "max_position_embeddings": 40_960, "hidden_act": "silu"}
PUBLISHED = {
    "Qwen2.5-0.5B": (494_032_768, 12_288, {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 32_768,
    }),
    "Qwen3-0.6B": (596_049_920, 114_688, {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "tie_word_embeddings": True, "head_dim": 128,
    }),
    "Qwen3-30B-A3B": (30_532_122_624, 98_304, {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_sizes(name):
    num_params, kv_bytes, config = PUBLISHED[name]
    facts = model_shape(QWEN | config).facts()
    assert facts.num_params == num_params
    assert facts.kv_bytes_per_token(2) == kv_bytes
    if name == "Qwen3-30B-A3B":  # 3.3B are active, the embedding that is looked up included
        assert facts.linear_params + facts.vocab * facts.hidden == 3_352_821_760
