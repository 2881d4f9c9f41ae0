"""The package's tables and the formulas over them, against the columns that the facts were computed with."""

import json
from dataclasses import replace

import pytest

from headway.core.errors import ModelError, UserError
from headway.matching.hardware import accelerators, find_accelerator
from headway.matching.model_config import find_model, from_config
from headway.matching.model_facts import known_models

COMPUTED = {  # parameters, active with embeddings, KV bytes of a token in bf16, attention width times layers
    "Qwen3-235B-A22B": (235092836352, 22189965312, 192512, 770048),
    "Qwen3-30B-A3B": (30531911680, 3352821760, 98304, 196608),
    "Qwen3-8B": (8190427136, 8190427136, 147456, 147456),
    "Qwen3-0.6B": (595984384, 595984384, 114688, 57344),
    "GLM-5": (743910014976, 41783525376, 89856, 1277952),
    "GLM-4.6": (352795525120, 33629962240, 376832, 1130496),
    "GLM-4.5-Air": (106851205120, 13423083520, 188416, 565248),
    "DeepSeek-V3": (671025397760, 37551276032, 70272, 1249280),
    "gpt-oss-120b": (116788838400, 5710233600, 73728, 147456),
    "Llama-3.1-8B": (8029995008, 8029995008, 131072, 131072),
    "SmolLM2-135M": (134479872, 134479872, 23040, 17280),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_formulas_give_the_computed_columns_exactly(name):
    model = known_models()[name]
    found = (model.params, model.active_params, model.kv_bytes_per_token(), model.score_width)
    assert found == COMPUTED[name]


def test_every_model_and_accelerator_has_a_source():
    assert set(known_models()) == set(COMPUTED)
    assert all(model.source for model in known_models().values())
    assert all(entry.source for entry in accelerators().values())


def test_training_flops_follow_the_causal_convention():
    model = known_models()["Qwen3-8B"]
    rows = [1000, 3000]
    expected = sum(row * (6 * model.linear_params + 6 * 147456 * row) for row in rows)
    assert model.train_flops(sum(rows), sum(row * row for row in rows)) == expected
    assert model.decode_flops(1, 1000) == 2 * model.linear_params + 4 * 147456 * 1000
    lora = model.train_flops(1000, 0, lora_params=7)
    assert lora == 1000 * (4 * model.linear_params + 42)


def test_a_token_of_sparse_attention_sees_no_more_than_the_indexer_chooses():
    model = known_models()["GLM-5"]
    assert model.decode_flops(1, 50_000) == model.decode_flops(1, 2048)
    dense = replace(model, indexer=None)
    assert dense.decode_flops(1, 50_000) > 2 * model.decode_flops(1, 50_000) - 2 * model.linear_params


def test_layers_with_a_window_hold_no_more_than_it():
    model = known_models()["gpt-oss-120b"]
    assert model.held_tokens(100) == 100
    assert model.held_tokens(10_128) == 5064 + 64


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("qwen3-235b-a22b-thinking-2507", "Qwen3-235B-A22B"),
        ("zai-org/GLM-4.5-Air", "GLM-4.5-Air"),
        ("smollm2", "SmolLM2-135M"),
    ],
)
def test_a_model_is_found_by_its_name(path, name):
    assert find_model(path).name == name


def test_the_tiny_model_has_numbers_before_it_is_made(tmp_path, monkeypatch, tiny_checkpoint):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    made = find_model(str(tiny_checkpoint))
    assert find_model("tiny") == replace(made, name="tiny", source="config.json of tiny")


def test_an_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(ModelError, match=r"Did you mean Qwen3-8B"):
        find_model("Qwen3-8C")


DEEPSEEK = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}


def test_a_config_with_latent_attention_and_experts_is_the_tables_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    found, table = find_model(str(tmp_path)), known_models()["DeepSeek-V3"]
    assert (found.params, found.active_params, found.score_width) == (
        table.params,
        table.active_params,
        table.score_width,
    )
    assert find_model(str(tmp_path / "config.json")) == replace(
        found, name=str(tmp_path / "config.json"), source=f"config.json of {tmp_path / 'config.json'}"
    )


def test_a_config_may_list_its_dense_layers():
    config = {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 1,
        "vocab_size": 100,
        "tie_word_embeddings": True,
    }
    model = from_config(config, "x")
    assert (model.dense_layers, model.kv_heads, model.head_dim) == (1, 4, 16)
    attention, expert = 64 * 16 * 16, 3 * 64 * 32
    assert model.params == 4 * attention + 3 * 64 * 96 + 3 * (64 * 8 + 8 * expert) + 6400


def test_a_config_without_a_field_is_refused_by_the_fields_name():
    with pytest.raises(ModelError, match=r"must give v_head_dim as a whole number"):
        from_config({**DEEPSEEK, "v_head_dim": None}, "x")


def test_an_accelerator_is_found_by_its_first_word():
    assert find_accelerator("h200", "k").name == "H200 SXM"
    assert find_accelerator("H200 SXM", "k").peak("fp8") == 1978e12
    assert find_accelerator("A100", "k").peak("fp8") == find_accelerator("A100", "k").peak("bf16")
    with pytest.raises(UserError, match=r"Did you mean"):
        find_accelerator("H201 SXM", "hardware.trainer.accelerator")
