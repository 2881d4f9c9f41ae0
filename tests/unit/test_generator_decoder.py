"""The embedded decoder computes what transformers computes."""

from array import array

import pytest
import torch

from headway.core.errors import ModelError
from headway.generator.decoder import Decoder, Fed, Piece
from headway.generator.kv import KvCache
from headway.generator.packing import pack_weights, update_weights
from headway.generator.policies import Served
from headway.models.experts import unfused
from headway.models.shape import model_shape
from tests.unit.family_models import FAMILIES, VARIANTS, make_config, make_model

SERVED = Served("", 0, 0)


def piece(slot, start, tokens):
    return Piece(slot, start, tokens, SERVED)


def fed(contexts):
    return [Fed(array("i", tokens), SERVED) for tokens in contexts]


def make_decoder(model, slots=4, context=64):
    shape = model_shape(model.config.to_dict())
    weights = pack_weights(shape, model.state_dict().items())
    return Decoder(shape, weights, context), KvCache(shape, slots, context, torch.device("cpu"))


@torch.inference_mode()
def reference(model, tokens):
    return model(torch.tensor([list(tokens)])).logits[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_for_ragged_prompts(variant):
    model = make_model(variant)
    decoder, cache = make_decoder(model)
    generator = torch.Generator().manual_seed(1)
    prompts = [array("i", torch.randint(0, 97, (n,), generator=generator).tolist()) for n in (2, 17, 40)]
    decoder.prefill([piece(slot, 0, prompt[:-1]) for slot, prompt in enumerate(prompts)], cache)
    logits = decoder.decode(fed(prompts), cache)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(logits[row], reference(model, prompt)[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", FAMILIES)
def test_greedy_tokens_equal_transformers(variant):
    model = make_model(variant)
    decoder, cache = make_decoder(model)
    prompts = [array("i", [5, 9, 3]), array("i", [1]), array("i", range(20, 31))]
    decoder.prefill([piece(slot, 0, p[:-1]) for slot, p in enumerate(prompts) if len(p) > 1], cache)
    tokens = [list(prompt) for prompt in prompts]
    for _ in range(12):
        logits = decoder.decode(fed(tokens), cache)
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


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_prompt_in_chunks_equals_the_prompt_at_once(variant):
    model = make_model(variant)
    decoder, cache = make_decoder(model)
    prompt = array("i", range(1, 31))
    decoder.prefill([piece(1, 0, prompt[:29])], cache)
    for start, end in ((0, 7), (7, 8), (8, 29)):
        decoder.prefill([piece(2, start, prompt[start:end])], cache)
    for index in range(3):
        for values in cache.layer(index):
            torch.testing.assert_close(values[2], values[1], atol=1e-5, rtol=1e-5)
    if (routes := cache.routes_of(1, 29)) is not None:
        assert torch.equal(cache.routes_of(2, 29), routes)


def test_slots_swap_whole_contents():
    decoder, cache = make_decoder(make_model("qwen3 moe"))
    decoder.prefill([piece(0, 0, array("i", [1, 2, 3])), piece(2, 0, array("i", [4, 5, 6, 7, 8]))], cache)
    keys, values = cache.layer(1)
    long, short = keys[2, :, :5].clone(), values[0, :, :3].clone()
    routes = [cache.routes_of(slot, n).clone() for slot, n in ((0, 3), (2, 5))]
    cache.swap(0, 3, 2, 5)
    assert torch.equal(cache.routes_of(2, 3), routes[0])
    assert torch.equal(cache.routes_of(0, 5), routes[1])
    assert torch.equal(keys[0, :, :5], long)
    assert torch.equal(values[2, :, :3], short)


PARTS = {
    "llama": ["self_attn.k_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"],
    "qwen2": ["self_attn.q_proj.weight", "self_attn.v_proj.bias"],
    "qwen3": ["self_attn.o_proj.weight", "self_attn.k_norm.weight"],
    "qwen3 moe": ["self_attn.q_norm.weight", "mlp.gate.weight", "mlp.experts.down_proj"],
    "llama biases": ["self_attn.q_proj.bias", "mlp.gate_proj.bias", "mlp.down_proj.bias"],
}


@pytest.mark.parametrize("variant", PARTS)
def test_a_partial_update_equals_packing_everything(variant):
    model, other = make_model(variant), make_model(variant, seed=1, initializer_range=0.1)
    shape = model_shape(model.config.to_dict())
    base = pack_weights(shape, model.state_dict().items())
    part = [f"model.layers.1.{name}" for name in PARTS[variant]]
    part += ["model.norm.weight", "model.embed_tokens.weight"]
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
    results = [decoder.decode(fed([[3]]), cache) for decoder in decoders]
    assert torch.equal(*results)


def test_one_expert_can_be_updated_alone():
    model, other = make_model("qwen3 moe"), make_model("qwen3 moe", seed=1)
    shape = model_shape(model.config.to_dict())
    base = pack_weights(shape, model.state_dict().items())
    name = "model.layers.1.mlp.experts.4.up_proj.weight"
    fresh = update_weights(shape, base, [(name, dict(unfused(other.state_dict().items()))[name])])
    wanted = base.layers[1].gate_up.clone()
    wanted[4, 24:] = other.state_dict()["model.layers.1.mlp.experts.gate_up_proj"][4, 24:]
    assert torch.equal(fresh.layers[1].gate_up, wanted)
    assert fresh.layers[1].down is base.layers[1].down


def test_packed_weights_never_alias_the_model():
    model = make_model()
    decoder, cache = make_decoder(model)
    before = decoder.decode(fed([[3]]), cache)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(decoder.decode(fed([[3]]), cache), before)


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_act": "gelu"}, "must be silu"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "default, llama3"),
    ],
)
def test_what_is_not_computed_is_refused(variant, changes, word):
    with pytest.raises(ModelError, match=word):
        model_shape(make_config(variant, **changes).to_dict())


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "qwen3 moe"])
def test_a_sliding_window_is_refused_unless_it_is_off(variant):
    on = make_config(variant, use_sliding_window=True, sliding_window=8, max_window_layers=1).to_dict()
    with pytest.raises(ModelError, match="sliding windows are not computed"):
        model_shape(on)
    off = make_config(variant, use_sliding_window=False, sliding_window=8).to_dict()
    assert model_shape(off | {"sliding_window": 8}).num_layers == 3


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_parameter_that_is_missing_unknown_or_misshapen_is_named(variant):
    model = make_model(variant)
    shape, state = model_shape(model.config.to_dict()), model.state_dict()
    name = "model.layers.1.self_attn.v_proj.weight"
    with pytest.raises(ModelError, match=name):
        pack_weights(shape, [(n, t) for n, t in state.items() if n != name])
    base = pack_weights(shape, state.items())
    for bad in ("model.layers.9.mlp.up_proj.weight", "base_model.model.x.lora_A.weight"):
        with pytest.raises(ModelError, match=bad):
            update_weights(shape, base, [(bad, state[name])])
    with pytest.raises(ModelError, match="must have shape"):
        update_weights(shape, base, [(name, state[name][:3])])
