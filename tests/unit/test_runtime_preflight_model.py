"""Checks of the model: its files, its tokenizer and template, loading it, and what all that runs on."""

import importlib.metadata
import json
import os

import pytest

from headway.models.cache import write_manifest
from headway.runtime.preflight.chat import chat_template, tokenizer
from tests.unit.preflight_parts import edit, found, only, subject

TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + %s + '<|im_end|>' + '\\n' }}"
ONE = "echo 'NVIDIA X, 550.1, 80 MiB'"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def template_of(path, each):
    (path / "chat_template.jinja").write_text(
        "{% for message in messages %}" + each + "{% endfor %}" + PROMPT
    )


def test_a_whole_model_is_well(checkpoint):
    text = only(found(subject(checkpoint), "model"), "ok").text
    assert text == "own: 431,232 parameters in 38 tensors, 2 MB, all there"


def test_missing_weights(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    finding = only(found(subject(checkpoint), "model"), "error")
    assert "must hold model.safetensors" in finding.text
    assert finding.place == "command line: model.path"


def test_damaged_weights(checkpoint):
    os.truncate(checkpoint / "model.safetensors", 1000)
    assert "truncated" in only(found(subject(checkpoint), "model"), "error").text


def test_a_tensor_too_many(checkpoint):
    from safetensors.numpy import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    weights["model.layers.4.mlp.up_proj.weight"] = weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, checkpoint / "model.safetensors")
    finding = only(found(subject(checkpoint), "model"), "error")
    assert finding.value == "model.layers.4.mlp.up_proj.weight"
    assert "config.json does not call for; 1 are extra" in finding.text


def test_a_context_that_the_model_was_not_made_for(checkpoint):
    findings = found(subject(checkpoint, "generator.max_context_tokens=2000"), "model")
    assert findings[0].level == "error"
    assert findings[0].sentence() == (
        "command line: generator.max_context_tokens: the model was made for 1024 positions (got 2000). Lower "
        "it, or use a model with a longer context"
    )


def test_a_cap_on_kv_that_is_too_small_for_one_request(checkpoint):
    edit(checkpoint, "config.json", max_position_embeddings=4096)
    changed = subject(checkpoint, "generator.max_context_tokens=4096", "generator.kv_cache_mb=1")
    finding = only(found(changed, "model"), "error")
    assert "which takes 6291456 bytes" in finding.text
    assert finding.place == "command line: generator.kv_cache_mb"


def test_lora_targets_that_the_model_does_not_have(checkpoint):
    assert found(subject(checkpoint, "trainer.lora_targets=q_proj, up_proj"), "model")[0].level == "ok"
    finding = found(subject(checkpoint, "trainer.lora_targets=q_proj,wq"), "model")[0]
    assert (finding.level, finding.value) == ("error", "wq")
    assert "q_proj" in finding.text


def test_the_tokenizer_and_template_of_the_model_are_well(checkpoint):
    findings = found(subject(checkpoint), "model", "tokenizer")
    assert only(findings, "ok").text == "259 tokens for 259 embedding rows; an answer ends at <|im_end|>"
    assert only(found(subject(checkpoint), "model", "tokenizer", "chat template"), "ok")


def test_a_tokenizer_larger_than_the_model(checkpoint):
    table = json.loads((checkpoint / "tokenizer.json").read_text())
    table["added_tokens"][0]["id"] = 300
    (checkpoint / "tokenizer.json").write_text(json.dumps(table))
    finding = only(found(subject(checkpoint), "model"), "error")
    assert finding.text == "Every token id must be below the model's vocabulary of 259"


def looked_at(path, vocab=None):
    """A subject whose model's files are taken as verified, with as many embedding rows as said."""
    one = subject(path)
    one.model_dir = path
    if vocab is not None:
        edit(path, "config.json", vocab_size=vocab)
    return one


@pytest.mark.parametrize("rows", [259, 272])
def test_rows_of_the_embedding_without_a_token_are_told(checkpoint, rows):
    finding = only(list(tokenizer(looked_at(checkpoint, rows))), "ok")
    if rows > 259:
        assert "13 rows of the embedding are spare" in finding.text


def test_a_tokenizer_of_another_model_with_as_many_tokens(checkpoint):
    edit(checkpoint, "generation_config.json", eos_token_id=[65])
    finding = only(list(tokenizer(looked_at(checkpoint))), "error")
    assert finding.text.startswith(
        "the tokenizer must belong to the model: generation_config.json says that eos_token_id is 65, which "
        "to the tokenizer is the ordinary token"
    )


def test_a_special_token_that_is_cut_into_pieces(checkpoint):
    edit(checkpoint, "tokenizer_config.json", eos_token="<end>")
    finding = only(list(tokenizer(looked_at(checkpoint))), "error")
    assert "eos_token '<end>' becomes 5" in finding.text


def test_a_template_that_forgets_answers(checkpoint):
    last = "(message['content'] if message['role'] != 'assistant' or loop.last else '')"
    template_of(checkpoint, TURN % last)
    from headway.core.errors import ModelError

    with pytest.raises(ModelError, match="show each answer exactly once"):
        list(chat_template(looked_at(checkpoint)))
    early = "(message['content'] if message['role'] != 'assistant' or loop.revindex < 3 else '')"
    template_of(checkpoint, TURN % early)
    finding = next(iter(chat_template(looked_at(checkpoint))))
    assert (finding.level, finding.key) == ("warning", "model.path")
    assert "leaves out or changes earlier answers" in finding.text


def test_a_template_that_forgets_thoughts(checkpoint):
    template_of(checkpoint, TURN % "message['content'].split('</think>')[-1]")
    assert "<think>" in only(list(chat_template(looked_at(checkpoint))), "warning").text


def test_a_template_that_depends_on_the_number_of_turns(checkpoint):
    template_of(
        checkpoint, "{% if loop.first %}{{ messages | length }}{% endif %}" + TURN % "message['content']"
    )
    finding = only(list(chat_template(looked_at(checkpoint))), "warning")
    assert "writes a conversation anew when it grows: '1<|im_start|>" in finding.text


def test_a_template_whose_turns_end_in_plain_text(checkpoint):
    template_of(checkpoint, "{{ message['role'] + ': ' + message['content'] + '\\n' }}")
    finding = next(iter(chat_template(looked_at(checkpoint))))
    assert finding.level == "warning"
    assert "ends an answer with '\\n', none of the tokens that end one (<|im_end|>)" in finding.text


def test_loading_takes_the_weights_in(checkpoint):
    finding = only(found(subject(checkpoint), "model", "loading"), "ok")
    assert finding.text.startswith("38 tensors loaded, every weight is finite; torch 2.")


def test_loading_finds_a_weight_that_is_no_number(checkpoint):
    from safetensors.numpy import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, checkpoint / "model.safetensors")
    finding = only(found(subject(checkpoint), "model", "loading"), "error")
    assert finding.value == "model.norm.weight"


def test_what_the_generator_does_not_compute(checkpoint):
    edit(checkpoint, "config.json", hidden_act="gelu")
    finding = only(found(subject(checkpoint), "model"), "error")
    assert "must be silu" in finding.text


def test_loading_finds_a_file_that_changed_since_it_was_fetched(checkpoint):
    write_manifest(checkpoint, "test")
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    finding = only(found(subject(checkpoint), "model", "loading"), "error")
    assert "damaged" in finding.text
    assert finding.place == ""


def test_versions_are_compared_with_the_package_s_own_ranges(checkpoint, monkeypatch):
    if not found(subject(checkpoint), "versions")[0].text.startswith("Headway runs from"):
        assert only(found(subject(checkpoint), "versions"), "ok").text.startswith("peft ")
    from headway.runtime.preflight import versions

    ranges = ["torch>=2.6,<3", "peft>=0.17", "gguf>=0.17", "plotly>=5 ; extra == 'report'"]
    monkeypatch.setattr(versions, "requires", lambda name: ranges)
    installed = {"torch": "2.5.1", "peft": None}

    def version(name):
        if installed[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(versions, "version", version)
    findings = found(subject(checkpoint), "versions")
    assert [(one.level, one.value) for one in findings] == [("error", "not installed"), ("error", "2.5.1")]
    assert findings[1].remedy == "Run: pip install 'torch<3,>=2.6'"
    installed["torch"] = "2.9.0+cpu"
    assert only(found(subject(checkpoint, "trainer.full=true"), "versions"), "ok")


@pytest.mark.parametrize(
    ("script", "level", "text"),
    [
        (None, "ok", "no GPU: CPU"),
        (f"{ONE}; {ONE}", "ok", "2 GPUs (NVIDIA X, 80 MiB, driver 550.1), not used"),
        ("echo 'could not talk to the driver'; exit 9", "warning", "could not talk to the driver"),
    ],
)  # fmt: skip
def test_the_device(checkpoint, tmp_path, monkeypatch, script, level, text):
    folder = tmp_path / "bin"
    folder.mkdir()
    if script is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert text in only(found(subject(checkpoint), "device"), level).text


def test_a_supervised_run_in_the_place_of_its_model_is_told_apart(checkpoint, tmp_path):
    run = tmp_path / "sft-run"
    run.mkdir()
    (run / "model").symlink_to(checkpoint)
    finding = only(found(subject(run), "model"), "error")
    assert finding.remedy == f"Did you mean {run / 'model'}?"
