"""FLOPs and bytes of known models, exact."""

from __future__ import annotations

import pytest

from headway.core.facts import ModelFacts

SMOLLM2 = ModelFacts(134_515_008, 30, 576, 9, 3, 64, 1536, 49_152, 8192)
LLAMA_8B = ModelFacts(8_030_261_248, 32, 4096, 32, 8, 128, 14_336, 128_256, 131_072)


def test_linear_parameters_are_all_weights_but_norms_and_the_looked_up_embedding() -> None:
    assert SMOLLM2.linear_params == 134_479_872  # tied: the embedding is the output projection
    assert SMOLLM2.num_params - SMOLLM2.linear_params == 61 * 576  # the norms
    assert LLAMA_8B.linear_params == 8_029_995_008 - 128_256 * 4096


@pytest.mark.parametrize(("facts", "wanted"), [(SMOLLM2, 23_040), (LLAMA_8B, 131_072)])
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
