"""The embedded decoder computes what transformers computes."""

from array import array

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.core.errors import ModelError
from headway.generator.decoder import Decoder, Piece
from headway.generator.kv import KvCache
from headway.generator.packing import pack_weights, update_weights
from headway.generator.shape import decoder_shape

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def make_model(**changes):
    torch.manual_seed(0)
    base = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.2,
        head_dim=8,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(base.to_dict() | changes))).eval()


def make_decoder(model, slots=4, context=64):
    shape = decoder_shape(model.config)
    weights = pack_weights(shape, model.state_dict().items())
    return Decoder(shape, weights, context), KvCache(shape, slots, context, torch.device("cpu"))


@torch.inference_mode()
def reference(model, tokens):
    return model(torch.tensor([list(tokens)])).logits[0]


VARIANTS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "multi-head": {"num_key_value_heads": 6},
    "wide heads": {"head_dim": 16},
    "llama3 rope": {"rope_parameters": LLAMA3},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers_for_ragged_prompts(changes):
    model = make_model(**changes)
    decoder, cache = make_decoder(model)
    generator = torch.Generator().manual_seed(1)
    prompts = [array("i", torch.randint(0, 97, (n,), generator=generator).tolist()) for n in (2, 17, 40)]
    decoder.prefill([Piece(slot, 0, prompt[:-1]) for slot, prompt in enumerate(prompts)], cache)
    logits = decoder.decode([prompt[-1] for prompt in prompts], [len(p) - 1 for p in prompts], cache)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(logits[row], reference(model, prompt)[-1], atol=1e-4, rtol=1e-4)


def test_greedy_tokens_equal_transformers():
    model = make_model()
    decoder, cache = make_decoder(model)
    prompts = [array("i", [5, 9, 3]), array("i", [1]), array("i", range(20, 31))]
    decoder.prefill([Piece(slot, 0, p[:-1]) for slot, p in enumerate(prompts) if len(p) > 1], cache)
    tokens = [list(prompt) for prompt in prompts]
    for _ in range(12):
        logits = decoder.decode([t[-1] for t in tokens], [len(t) - 1 for t in tokens], cache)
        for row, token in enumerate(logits.argmax(-1).tolist()):
            tokens[row].append(token)
    for row, prompt in zip(tokens, prompts, strict=True):
        wanted = model.generate(
            torch.tensor([list(prompt)]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert row == wanted[0].tolist()


def test_a_prompt_in_chunks_equals_the_prompt_at_once():
    model = make_model()
    decoder, cache = make_decoder(model)
    prompt = array("i", range(1, 31))
    decoder.prefill([Piece(1, 0, prompt[:29])], cache)
    for start, end in ((0, 7), (7, 8), (8, 29)):
        decoder.prefill([Piece(2, start, prompt[start:end])], cache)
    for index in range(3):
        for values in cache.layer(index):
            torch.testing.assert_close(values[2], values[1], atol=1e-5, rtol=1e-5)


def test_slots_swap_whole_contents():
    decoder, cache = make_decoder(make_model())
    decoder.prefill([Piece(0, 0, array("i", [1, 2, 3])), Piece(2, 0, array("i", [4, 5, 6, 7, 8]))], cache)
    keys, values = cache.layer(1)
    long, short = keys[2, :, :5].clone(), values[0, :, :3].clone()
    cache.swap(0, 3, 2, 5)
    assert torch.equal(keys[0, :, :5], long)
    assert torch.equal(values[2, :, :3], short)


def test_a_partial_update_equals_packing_everything():
    model, other = make_model(), make_model(initializer_range=0.1)
    shape = decoder_shape(model.config)
    base = pack_weights(shape, model.state_dict().items())
    part = [
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.norm.weight",
        "model.embed_tokens.weight",
    ]
    before = base.layers[1].qkv.to_dense().clone()
    fresh = update_weights(shape, base, [(name, other.state_dict()[name]) for name in part])
    assert fresh.layers[0].qkv is base.layers[0].qkv
    assert torch.equal(base.layers[1].qkv.to_dense(), before)
    state = model.state_dict()
    for name in [*part, "lm_head.weight"]:
        state[name] = other.state_dict()[name]
    whole = pack_weights(shape, state.items())
    decoders = [Decoder(shape, weights, 64) for weights in (fresh, whole)]
    cache = KvCache(shape, 1, 64, torch.device("cpu"))
    results = [decoder.decode([3], [0], cache) for decoder in decoders]
    assert torch.equal(*results)


def test_packed_weights_never_alias_the_model():
    model = make_model()
    decoder, cache = make_decoder(model)
    before = decoder.decode([3], [0], cache)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(decoder.decode([3], [0], cache), before)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope"),
    ],
)
def test_what_is_not_computed_is_refused(changes, word):
    config = LlamaConfig(**changes)
    with pytest.raises(ModelError, match=word):
        decoder_shape(config)


def test_a_parameter_that_is_missing_unknown_or_misshapen_is_named():
    model = make_model()
    shape, state = decoder_shape(model.config), model.state_dict()
    name = "model.layers.1.self_attn.v_proj.weight"
    with pytest.raises(ModelError, match="v_proj"):
        pack_weights(shape, [(n, t) for n, t in state.items() if n != name])
    base = pack_weights(shape, state.items())
    for bad in ("model.layers.9.mlp.up_proj.weight", "base_model.model.x.lora_A.weight"):
        with pytest.raises(ModelError, match=bad):
            update_weights(shape, base, [(bad, state[name])])
    with pytest.raises(ModelError, match="must have shape"):
        update_weights(shape, base, [(name, state[name][:3])])
