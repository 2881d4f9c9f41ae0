"""Publishing and reading policy versions."""

import json

import pytest
import torch
from safetensors.torch import load_file

from headway.core.errors import HeadwayError
from headway.weights.atomic import whole_directory
from headway.weights.manifest import read_manifest
from headway.weights.names import lora_name, parse_lora
from headway.weights.publish import version_name, write_adapter, write_full
from headway.weights.read import WeightReader

Q = "model.layers.0.self_attn.q_proj.weight"
BASE = {Q: torch.arange(6.0).reshape(2, 3), "model.norm.weight": torch.ones(3)}


def factors(scale=1.0):
    return {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.tensor([[1.0, 2.0, 3.0]]),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": scale
        * torch.tensor([[1.0], [-1.0]]),
    }


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_an_adapter_is_read_as_base_plus_scaled_product(tmp_path):
    manifest = write_adapter(tmp_path, 0, 3, factors(), rank=1, alpha=2.0)
    read = dict(WeightReader(BASE).read(manifest))
    assert list(read) == [Q]
    assert read[Q].tolist() == [[2.0, 5.0, 8.0], [1.0, 0.0, -1.0]]
    assert BASE[Q].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_a_tensor_has_the_dtype_of_its_base_and_is_summed_in_float32(tmp_path):
    manifest = write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0)
    base = {Q: torch.full((2, 3), 1 / 3, dtype=torch.bfloat16)}
    read = dict(WeightReader(base).read(manifest))[Q]
    exact = base[Q].float() + torch.tensor([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]])
    assert torch.equal(read, exact.to(torch.bfloat16))


def test_full_weights_are_read_as_they_were_written(tmp_path):
    tensors = {name: tensor * 2 for name, tensor in BASE.items()}
    manifest = write_full(tmp_path, 1, 4, tensors)
    read = dict(WeightReader(BASE, check_hashes=True).read(str(manifest)))
    assert all(torch.equal(read[name], tensors[name]) for name in BASE)
    facts = read_manifest(manifest)
    assert (facts.kind, facts.lineage, facts.number) == ("full", 1, 4)


def test_a_version_directory_is_a_peft_adapter(tmp_path):
    manifest = write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=2.0, base_model="base")
    config = json.loads((manifest.parent / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (1, 2.0, ["q_proj"])
    assert load_file(manifest.parent / "adapter_model.safetensors").keys() == factors().keys()


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_newest_versions_stay(tmp_path, keep):
    for number in range(5):
        write_adapter(tmp_path, 0, number, factors(), rank=1, alpha=1.0, keep=keep)
    assert names(tmp_path) == [version_name(0, number) for number in range(5 - keep, 5)]


def test_a_new_lineage_is_newer_than_any_older_one(tmp_path):
    write_adapter(tmp_path, 0, 9, factors(), rank=1, alpha=1.0, keep=1)
    write_adapter(tmp_path, 1, 4, factors(), rank=1, alpha=1.0, keep=1)
    assert names(tmp_path) == [version_name(1, 4)]


def test_a_version_that_is_being_read_is_not_pruned(tmp_path):
    reading = WeightReader(BASE).read(write_adapter(tmp_path, 0, 0, factors(), rank=1, alpha=1.0))
    next(reading)
    write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0, keep=1)
    assert names(tmp_path) == [version_name(0, 0), version_name(0, 1)]
    reading.close()
    write_adapter(tmp_path, 0, 2, factors(), rank=1, alpha=1.0, keep=1)
    assert names(tmp_path) == [version_name(0, 2)]


def test_a_version_published_again_replaces_the_first(tmp_path):
    write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0)
    manifest = write_adapter(tmp_path, 0, 1, factors(2.0), rank=1, alpha=1.0)
    assert names(tmp_path) == [version_name(0, 1)]
    assert dict(WeightReader(BASE).read(manifest))[Q][0, 0] == 2.0


def test_a_torn_version_is_refused(tmp_path):
    manifest = write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0)
    weights = manifest.parent / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(HeadwayError, match="are torn"):
        next(WeightReader(BASE).read(manifest))


def test_damage_of_the_same_length_is_found_by_hash(tmp_path):
    manifest = write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0)
    weights = manifest.parent / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    next(WeightReader(BASE).read(manifest))
    with pytest.raises(HeadwayError, match="are damaged"):
        next(WeightReader(BASE, check_hashes=True).read(manifest))


def test_a_version_that_is_gone_or_of_another_base_is_refused(tmp_path):
    manifest = write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0)
    with pytest.raises(HeadwayError, match="must be there"):
        next(WeightReader(BASE).read(tmp_path / "gone" / "manifest.json"))
    with pytest.raises(HeadwayError, match="must fit the base model"):
        next(WeightReader({Q: torch.zeros(2, 4)}).read(manifest))
    with pytest.raises(HeadwayError, match="must fit the base model"):
        next(WeightReader({}).read(manifest))


def test_a_write_that_fails_leaves_nothing_and_a_killed_one_is_cleaned_up(tmp_path):
    def fail():
        with whole_directory(tmp_path / "v") as staging:
            (staging / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(tmp_path) == []
    (tmp_path / ".partial-v").mkdir()
    (tmp_path / ".partial-v" / "half").write_text("x")
    write_adapter(tmp_path, 0, 1, factors(), rank=1, alpha=1.0)
    assert names(tmp_path) == [version_name(0, 1)]


def test_names_go_from_peft_to_hugging_face_and_back():
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert parse_lora(name) == (Q, "A")
    assert parse_lora(name.replace("lora_A.weight", "lora_A.default.weight")) == (Q, "A")
    assert lora_name(Q, "A") == name
    with pytest.raises(HeadwayError, match="lora_A or lora_B"):
        parse_lora("base_model.model.model.embed_tokens.lora_embedding_A")
