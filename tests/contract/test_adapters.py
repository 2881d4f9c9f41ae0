"""The embedded engine serves adapters as peft computes them, and refuses the others in one clear sentence."""

import asyncio
import gc
import json
import time
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.core.errors import EngineError, ModelError, UserError
from headway.core.protocols import MAIN_POLICY
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.adapters import read_adapter
from headway.models.shape import model_shape
from headway.weights.publish import write_adapter
from tests.contract.adapter_contract import RECIPES, AdapterContract, Models, ask, save_adapter
from tests.contract.engine_contract import collect, collect_all
from tests.unit.family_models import VARIANTS, make_config


def make_engine(model, *, decode_text=None, base_model="", **settings):
    options = {"max_running": 8, "max_context_tokens": 64, "prefill_chunk_tokens": 24, "threads": 1}
    return EmbeddedEngine(
        model,
        model_shape(model.config.to_dict()),
        GeneratorSettings(**(options | settings)),
        replica="r0",
        decode_text=decode_text,
        read_weights=lambda manifest: model.state_dict().items(),
        base_model=base_model,
    )


class TestEmbeddedEngine(AdapterContract):
    async def make_engine(self, model):
        return make_engine(model, chunk_tokens=1)

    def dropped(self, engine, num_since):
        gc.collect()
        tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        if num_since == 0:
            self.num_tensors = tensors
        else:  # a leak is a tensor an adapter at least; engines' threads may hold those of a step as we look
            assert tensors - self.num_tensors < num_since


@pytest.fixture
def models(tmp_path):
    return Models("llama", tmp_path)


@pytest.fixture
def place(models):
    """An adapter that a test may break."""
    models.place("b")
    return models.folder / "b"


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "moe" not in name])
async def test_all_linear_layers_of_each_variant(variant, tmp_path):
    models = Models(variant, tmp_path)
    engine = make_engine(models.base)
    await engine.load_adapter("b", 0, 1, models.place("b"), "keep")
    items = [ask(name, name, range(5, 33), temperature=0.0) for name in ("b", MAIN_POLICY)]
    for item, answer in zip(items, await collect_all(engine, items), strict=True):
        assert list(answer.token_ids) == models.greedy(item.policy, item.prompt_ids, 8)
        models.check(item.policy, item, answer)
    await engine.close()


@pytest.mark.parametrize(
    "recipe",
    [
        {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"layers.1.mlp.up_proj": 40}},
        {"target_modules": r".*layers\.[02]\..*(q|down)_proj"},
        {"layers_to_transform": [1]},
        {"target_modules": "all-linear", "exclude_modules": ["v_proj"]},
        {"target_modules": "all-linear", "init_lora_weights": "gaussian"},
    ],
    ids=lambda recipe: next(iter(recipe)),
)
async def test_what_peft_says_of_single_layers(recipe, tmp_path):
    models = Models("llama", tmp_path)
    place = save_adapter(tmp_path / "x", **(RECIPES["b"] | recipe))
    engine = make_engine(models.base)
    await engine.load_adapter("x", 0, 1, str(place), "keep")
    item = ask("x", "r", range(5, 33))
    models.check("x", item, await collect(engine, item))
    await engine.close()


async def test_a_published_version_and_a_peft_directory_are_the_same_adapter(models, tmp_path):
    tensors = load_file(f"{models.place('b')}/adapter_model.safetensors")
    manifest = write_adapter(tmp_path / "versions", 1, 2, tensors, rank=4, alpha=16)
    engine = make_engine(models.base)
    await engine.load_adapter("published", 1, 2, str(manifest), "keep")
    await engine.load_adapter("directory", 1, 2, str(manifest.parent), "keep")
    for policy in ("published", "directory"):
        item = ask(policy, policy, range(5, 33))
        models.check("b", item, await collect(engine, item))
    await engine.close()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_running_requests_go_on_under_an_update(kv, models):
    """Every request is held in the middle of its answer while its adapter is replaced."""
    engine = None
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def decode_text(ids):
        if len(ids) == 5:
            loop.call_soon_threadsafe(held.set)
        while len(ids) == 5 and not engine._loop.inbox and number() == 1:
            time.sleep(0.001)
        return ""

    def number():
        return engine._loop.policies.adapters["a"].number

    engine = make_engine(models.base, decode_text=decode_text, chunk_tokens=1)
    await engine.load_adapter("a", 0, 1, models.place("a1", 1), "keep")
    second = models.place("a2", 2)
    policies = ("a", "a", MAIN_POLICY)
    items = [
        ask(policy, f"r{i}", range(1, 9 + 9 * i), max_tokens=20, stop_strings=("never",))
        for i, policy in enumerate(policies)
    ]
    tasks = [asyncio.ensure_future(collect(engine, item)) for item in items]
    await held.wait()
    pause = await engine.load_adapter("a", 0, 2, second, kv)
    assert pause > 0
    for item, answer in zip(items, await asyncio.gather(*tasks), strict=True):
        if item.policy == MAIN_POLICY:
            assert answer.spans == ((0, 0, 20),)
            models.check(MAIN_POLICY, item, answer)
            continue
        assert [span.number for span in answer.spans] == [1, 2]
        logprobs, old = torch.tensor(list(answer.logprobs)), answer.spans[0].num_tokens
        wanted = [models.logprobs(f"a{n}", item.prompt_ids, answer.token_ids) for n in (1, 2)]
        torch.testing.assert_close(logprobs[:old], wanted[0][:old], atol=1e-4, rtol=0)
        gap = float((logprobs[old:] - wanted[1][old:]).abs().max())
        assert (gap < 1e-4) == (kv == "recompute")
    # KV that was kept is of two versions, and no other request's.
    fresh = ask("a", "fresh", items[1].prompt_ids, session=items[1].session)
    models.check("a2", fresh, await collect(engine, fresh))
    await engine.close()


async def test_an_adapter_that_overflows_loses_its_own_requests_alone(models, place):
    change_tensors(place, lambda tensors: [tensor.mul_(1e30) for tensor in tensors.values()])
    engine = make_engine(models.base, max_running=4, prefill_chunk_tokens=16)
    wanted = await collect(engine, ask(MAIN_POLICY, "alone", [1, 2, 3], max_tokens=30, temperature=0.0))
    await engine.load_adapter("huge", 0, 1, str(place), "keep")
    for turn in range(6):
        broken = [ask("huge", f"h{turn}.{i}", [i + 5] * 40, max_tokens=9) for i in range(3)]
        sound = ask(MAIN_POLICY, f"m{turn}", [1, 2, 3], max_tokens=30, temperature=0.0)
        *lost, answer = await collect_all(engine, [*broken, sound])
        assert {each.finish for each in lost} == {"lost"}
        assert all("adapter 'huge'" in each.message for each in lost)
        assert answer.token_ids == wanted.token_ids
    await engine.close()


async def test_an_engine_that_took_up_weights_takes_no_adapters(models):
    engine = make_engine(models.base)
    await engine.apply(0, 1, "", "keep")
    with pytest.raises(EngineError, match="the weights it was made with"):
        await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
    await engine.close()


async def test_there_is_a_limit_to_adapters(models):
    engine = make_engine(models.base, max_adapters=1)
    await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
    await engine.load_adapter("a", 0, 2, models.place("a"), "keep")  # an update needs no room
    with pytest.raises(UserError, match=r"generator.max_adapters: at most 1 .* \(got 'b'\)"):
        await engine.load_adapter("b", 0, 1, models.place("b"), "keep")
    await engine.drop_adapter("a")
    await engine.load_adapter("b", 0, 1, models.place("b"), "keep")
    await engine.close()


@pytest.mark.parametrize(("named", "warned"), [("org/Base", False), ("org/other", True), (None, False)])
async def test_another_name_of_the_base_is_a_warning_only(named, warned, models, place):
    change_config(place, base_model_name_or_path=named)
    engine = make_engine(models.base, base_model="/models/base")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        await engine.load_adapter("b", 0, 1, str(place), "keep")
    assert ["says that its base is org/other" in str(each.message) for each in found] == [True] * warned
    await engine.close()


def change_config(place, **changes):
    file = place / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(place, change):
    file = place / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


Q = "base_model.model.model.layers.1.self_attn.q_proj"


def other_name(new, old=f"{Q}.lora_A.weight"):
    return lambda place: change_tensors(place, lambda tensors: tensors.update({new: tensors.pop(old)}))


def without(part):
    def change(tensors):
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return lambda place: change_tensors(place, change)


def config(**changes):
    return lambda place: change_config(place, **changes)


def nan(place):
    change_tensors(place, lambda tensors: tensors[f"{Q}.lora_B.weight"].fill_(float("nan")))


def cut(name, size):
    return lambda place: (place / name).write_bytes((place / name).read_bytes()[:size])


def gone(name):
    return lambda place: (place / name).unlink()


def pickled(place):
    (place / "adapter_model.safetensors").rename(place / "adapter_model.bin")


BROKEN = {
    "no config": (gone("adapter_config.json"), "must be a directory with adapter_config.json"),
    "a cut config": (cut("adapter_config.json", 40), "must be readable and hold a JSON object"),
    "no rank": (config(r=None), "must give r, lora_alpha and target_modules"),
    "rank 0": (config(r=0), "must give r, lora_alpha and target_modules"),
    "another method": (config(peft_type="IA3"), r"must be LoRA: .*adapter_config.json .*\(got 'IA3'\)"),
    "DoRA": (config(use_dora=True), "asks for DoRA"),
    "whole layers": (config(modules_to_save=["lm_head"]), r"modules_to_save\), .* \(got \['lm_head'\]\)"),
    "biases": (config(bias="all"), r"must not train biases: .*\(got 'all'\)"),
    "biases of factors": (config(lora_bias=True), "lora_bias"),
    "experts": (config(target_parameters=["mlp.experts.down_proj"]), "experts"),
    "a changed base": (config(init_lora_weights="pissa"), "path_initial_model_for_weight_conversion"),
    "no weights": (
        gone("adapter_model.safetensors"),
        "must hold its factors in adapter_model.safetensors: .* has none",
    ),
    "pickled weights": (pickled, r"adapter_model.bin.*safe_serialization"),
    "cut weights": (cut("adapter_model.safetensors", 999), "must be a whole safetensors file"),
    "NaN": (nan, rf"must be finite .*{Q}.lora_B.weight"),
    "A alone": (without(f"{Q}.lora_B"), rf"holds lora_A alone \(got '{Q[17:]}'\)"),
    "a missing layer": (without(Q), rf"1 of 21 are missing \(got '{Q[17:]}'\)"),
    "no factors": (without("lora"), "21 of 21 are missing"),
    "too many layers": (
        other_name(f"{Q.replace('.1.', '.7.')}.lora_A.weight"),
        "this model has no such layer .*layers.7",
    ),
    "embedding": (other_name("base_model.model.model.embed_tokens.lora_embedding_A"), "adapts the embedding"),
    "output layer": (other_name("base_model.model.lm_head.lora_A.weight"), "of the output layer"),
    "an expert": (
        other_name("base_model.model.model.layers.1.mlp.experts.0.up_proj.lora_A.weight"),
        "of an expert",
    ),
    "a router": (other_name("base_model.model.model.layers.1.mlp.gate.lora_A.weight"), "of a router"),
    "a magnitude": (other_name(f"{Q}.lora_magnitude_vector"), "of DoRA"),
    "a bias": (other_name(f"{Q}.lora_B.bias"), "a bias"),
    "layers of another config": (config(target_modules=["v_proj"]), "and it holds others .*proj.lora_"),
    "another rank": (config(r=8), "must have the rank 8 that adapter_config.json gives"),
    "a high rank": (
        lambda place: save_adapter(place, **(RECIPES["a"] | {"r": 65})),
        r"generator.max_adapter_rank: .* at most 64: .*\(got 65\)",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_adapter_is_one_clear_error(case, models, place):
    break_it, message = BROKEN[case]
    break_it(place)
    engine = make_engine(models.base)
    with pytest.raises(ModelError, match=message) as raised:
        await engine.load_adapter("b", 0, 1, str(place), "keep")
    assert raised.value.remedy
    assert str(place) in str(raised.value)
    await engine.close()


async def test_an_adapter_of_another_base_names_the_layer_and_both_shapes(place):
    change_config(place, base_model_name_or_path="org/narrow")
    shape = model_shape(make_config("llama", hidden_size=96).to_dict())
    with pytest.raises(ModelError) as raised:
        read_adapter(place, shape)
    assert "model.layers.0.mlp.down_proj takes 80 values and gives 96 here" in raised.value.rule
    assert "A [4, 80] and B [48, 4]" in raised.value.rule
    assert raised.value.value == "org/narrow"


def test_an_adapter_of_dense_layers_does_not_go_with_a_model_of_experts(place):
    with pytest.raises(ModelError, match="this model has no such layer"):
        read_adapter(place, model_shape(make_config("qwen3 moe").to_dict()))
