"""FLOPs and bytes of known models, exact."""

from __future__ import annotations

import pytest

from headway.core.facts import ModelFacts

SMOLLM2 = ModelFacts(134_515_008, 30, 576, 9, 3, 64, 1536, 49_152, 8192)
QWEN3_06B = ModelFacts(596_049_920, 28, 1024, 16, 8, 128, 3072, 151_936, 40_960)
QWEN3_8B = ModelFacts(8_190_735_360, 36, 4096, 32, 8, 128, 12_288, 151_936, 40_960)
QWEN3_30B = ModelFacts(30_532_122_624, 48, 2048, 32, 4, 128, 6144, 151_936, 40_960, 48, 128, 8, 768)
QWEN3_235B = ModelFacts(235_093_634_560, 94, 4096, 64, 4, 128, 12_288, 151_936, 40_960, 94, 128, 8, 1536)
LLAMA_8B = ModelFacts(8_030_261_248, 32, 4096, 32, 8, 128, 14_336, 128_256, 131_072)


def test_linear_parameters_are_all_weights_but_norms_and_the_looked_up_embedding() -> None:
    assert SMOLLM2.linear_params == 134_479_872  # tied: the embedding is the output projection
    assert SMOLLM2.num_params - SMOLLM2.linear_params == 61 * 576  # the norms
    assert LLAMA_8B.linear_params == 8_029_995_008 - 128_256 * 4096


@pytest.mark.parametrize(
    ("facts", "active"),
    [
        (QWEN3_06B, 595_984_384),
        (QWEN3_8B, 8_190_427_136),
        (QWEN3_30B, 3_352_821_760),
        (QWEN3_235B, 22_189_965_312),
    ],
    ids=["0.6B, tied", "8B", "30B-A3B", "235B-A22B"],
)
def test_of_many_experts_those_that_a_token_meets_count(facts: ModelFacts, active: int) -> None:
    looked_up = 0 if facts is QWEN3_06B else facts.vocab * facts.hidden
    assert facts.linear_params + looked_up == active


def test_all_matrices_are_those_of_every_expert() -> None:
    assert QWEN3_30B.matrix_params + 151_936 * 2048 == 30_531_911_680
    assert QWEN3_235B.matrix_params + 151_936 * 4096 == 235_092_836_352
    assert SMOLLM2.matrix_params == SMOLLM2.linear_params


def test_lora_on_a_model_with_experts_is_on_attention() -> None:
    sides = 2 * (2048 + 4096) + 2 * (2048 + 512)
    assert QWEN3_30B.lora_params(16) == 48 * 16 * sides
    assert QWEN3_30B.lora_params(16, "q_proj,gate_proj") == 48 * 16 * (2048 + 4096)


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (SMOLLM2, 23_040),
        (LLAMA_8B, 131_072),
        (QWEN3_06B, 114_688),
        (QWEN3_8B, 147_456),
        (QWEN3_30B, 98_304),
        (QWEN3_235B, 192_512),
    ],
)
def test_kv_bytes_of_a_token_in_two_byte_numbers(facts: ModelFacts, wanted: int) -> None:
    assert facts.kv_bytes_per_token(2) == wanted


def test_lora_parameters_of_all_linear_layers_and_of_some() -> None:
    assert SMOLLM2.lora_params(16) == 4_884_480
    assert SMOLLM2.lora_params(16, "q_proj, v_proj") == 30 * 16 * (1152 + 768)


def test_flops_of_training_lora_and_decoding_in_the_causal_convention() -> None:
    scores = 17_280  # layers * heads * head_dim
    assert SMOLLM2.train_flops(10, 100) == 10 * (6 * 134_479_872 + 6 * scores * 100)
    assert SMOLLM2.lora_train_flops(10, 100, 4_884_480) == 10 * (
        4 * 134_479_872 + 6 * 4_884_480 + 6 * scores * 100
    )
    assert SMOLLM2.decode_flops(10, 100) == 10 * (2 * 134_479_872 + 4 * scores * 100)
