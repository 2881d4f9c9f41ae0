"""An exported model is the trained one: transformers and PEFT load it, and it says what the trainer says."""

import errno
import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from headway.cli.main import main
from headway.core.errors import RunDirectoryError, UserError
from headway.core.payload import read_payload
from headway.models.checkpoint import resolve
from headway.models.from_gguf import convert
from headway.models.load import load_state
from headway.runtime import export as module
from headway.runtime.export import export
from headway.weights.read import WeightReader
from tests.unit.made_run import make_run, tiny_base
from tests.unit.test_models_from_gguf import write_gguf

HOT = ("trainer.learning_rate=0.02", "trainer.threads=1")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def lora(tmp_path_factory, base):
    """A run with LoRA factors: its directory, its trainer and a row."""
    path = tmp_path_factory.mktemp("runs") / "lora"
    return path, *make_run(path, base, *HOT)


@pytest.fixture
def copy(lora, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(lora[0], tmp_path / "copy")


def untie(base, target):
    """A base model with an output layer of its own."""
    shutil.copytree(base, target)
    config = json.loads((base / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    tensors = load_file(base / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file({**tensors, "lm_head.weight": head}, target / "model.safetensors", {"format": "pt"})
    return target


def logprobs_of(model, run_dir, row):
    """Log-probs of a row's trained tokens, from a loaded model's logits."""
    (sample,) = read_payload(run_dir / "payloads", row.payload).samples
    ids = torch.tensor([list(sample.token_ids)])
    with torch.no_grad():
        logits = model(ids).logits[0].float()
    chosen = torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    return chosen[torch.tensor([bool(flag) for flag in sample.trainable][1:])]


def assert_same_policy(model, run_dir, trainer, row, atol=1e-5):
    ((wanted,),) = trainer.forward([row])
    assert torch.allclose(logprobs_of(model, run_dir, row), wanted, rtol=0, atol=atol)


def says_something(directory, model):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3+4="}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**inputs, max_new_tokens=4, do_sample=True)
    return isinstance(tokenizer.decode(out[0]), str) and out.shape[1] > inputs["input_ids"].shape[1]


def test_the_merged_model_is_the_trainer_s_and_not_the_base(lora, base, tmp_path):
    run_dir, trainer, row = lora
    assert export(run_dir, tmp_path / "out") == 3
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.float32
    assert_same_policy(model, run_dir, trainer, row)
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert (logprobs_of(before, run_dir, row) - logprobs_of(model, run_dir, row)).abs().max() > 0.01
    assert says_something(tmp_path / "out", model)


def test_the_merged_weights_are_those_of_the_generator_to_the_bit(lora, base, tmp_path):
    run_dir, trainer, _ = lora
    export(run_dir, tmp_path / "out")
    manifest, _ = trainer.publish(0, 3)
    _, state = load_state(base)
    generators = dict(WeightReader(state).read(manifest))
    _, exported = load_state(tmp_path / "out")
    assert len(generators) == 28
    assert all(torch.equal(exported[name], tensor) for name, tensor in generators.items())
    assert all(torch.equal(exported[name], state[name]) for name in state.keys() - generators.keys())


def test_the_adapter_loads_in_peft(lora, tmp_path):
    run_dir, trainer, row = lora
    export(run_dir, tmp_path / "out", form="adapter")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    assert_same_policy(PeftModel.from_pretrained(model, tmp_path / "out"), run_dir, trainer, row)
    assert "library_name: peft" in (tmp_path / "out" / "README.md").read_text()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_all_weights_of_full_fine_tuning_with_an_output_layer_of_its_own(base, tmp_path):
    own = untie(base, tmp_path / "own")
    run_dir = tmp_path / "full"
    trainer, row = make_run(run_dir, own, *HOT, "trainer.full=true", steps=(2,))
    export(run_dir, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert_same_policy(model, run_dir, trainer, row)
    with pytest.raises(UserError, match="trained all weights"):
        export(run_dir, tmp_path / "adapter", form="adapter")


def test_a_gguf_base(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "base.gguf")
    converted = resolve(str(tmp_path / "base.gguf"))
    run_dir = tmp_path / "run"
    trainer, row = make_run(run_dir, converted, *HOT, steps=(1,))
    header = (run_dir / "journal.jsonl").read_text().replace(str(converted), str(tmp_path / "base.gguf"))
    (run_dir / "journal.jsonl").write_text(header)
    export(run_dir, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert_same_policy(model, run_dir, trainer, row)
    assert says_something(tmp_path / "out", model)
    assert 'base_model: "base.gguf"' in (tmp_path / "out" / "README.md").read_text()


def test_half_precision_is_half_the_size(lora, tmp_path):
    export(lora[0], tmp_path / "whole")
    export(lora[0], tmp_path / "half", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto")
    assert model.dtype == torch.bfloat16
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]


def test_large_weights_go_into_several_files(lora, tmp_path, monkeypatch):
    write = module.write_model
    monkeypatch.setattr(module, "write_model", lambda *args: write(*args, shard_size="500KB"))
    export(lora[0], tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert_same_policy(model, lora[0], lora[1], lora[2])


def test_the_result_is_a_model_path(lora, tmp_path):
    export(lora[0], tmp_path / "out")
    run_dir = tmp_path / "next"
    trainer, row = make_run(run_dir, tmp_path / "out", *HOT, steps=(1,))
    export(run_dir, tmp_path / "again")
    assert_same_policy(AutoModelForCausalLM.from_pretrained(tmp_path / "again"), run_dir, trainer, row)


def test_an_older_step_and_one_that_is_not_there(lora, tmp_path):
    assert export(lora[0], tmp_path / "out", step=1) == 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| optimizer steps | 1 |" in card
    assert "These weights, of step 1, were not evaluated themselves." in card
    with pytest.raises(UserError, match=r"no checkpoint of this step \(got 9\).*of the steps 1, 2, 3"):
        export(lora[0], tmp_path / "other", step=9)


def test_the_card_states_what_the_journal_knows(lora, tmp_path):
    export(lora[0], tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    front = card.split("---\n")[1]
    assert 'base_model: "base"' in front
    assert "library_name: transformers" in front
    assert "license:" not in front
    for part in (
        "| optimizer steps | 3 |",
        "| weights trained | LoRA, rank 16, alpha 32, all-linear |",
        "advantage grpo, loss grpo",
        "commit c0de with changes",
        "Environment `arithmetic`",
        "| 0 | 4 | 1 | ",
        "| 3 | 4 | 1 | ",
        "AutoModelForCausalLM.from_pretrained(DIRECTORY",
        "## Limits",
    ):
        assert part in card
    assert str(lora[0].parent) not in card


def test_the_licence_is_the_base_model_s_where_its_card_says_it(base, tmp_path):
    known = shutil.copytree(base, tmp_path / "known")
    (known / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    make_run(tmp_path / "run", known, *HOT, steps=(1,))
    export(tmp_path / "run", tmp_path / "out")
    assert "\nlicense: apache-2.0\n" in (tmp_path / "out" / "README.md").read_text()


def test_a_damaged_checkpoint_is_named_and_an_older_one_taken_only_if_asked(copy, tmp_path):
    file = copy / "checkpoints" / "step-000003" / "adapter" / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"step-000003 is damaged.*--step: whole are 1, 2"):
        export(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert export(copy, tmp_path / "out", step=2) == 2


def test_an_incomplete_checkpoint_is_named(copy, tmp_path):
    (copy / "checkpoints" / "step-000003" / "trainer.pt").unlink()
    with pytest.raises(UserError, match=r"step-000003 is incomplete: trainer\.pt"):
        export(copy, tmp_path / "out")


def test_no_checkpoint_yet(base, tmp_path):
    make_run(tmp_path / "run", base, steps=(), num_entries=20)
    with pytest.raises(UserError, match=r"has no checkpoint yet.*checkpoint\.every_steps"):
        export(tmp_path / "run", tmp_path / "out")


def test_a_checkpoint_that_a_running_run_drops_meanwhile(copy, tmp_path, monkeypatch):
    from headway.trainer import trained

    read = trained.read_checkpoint

    def drop(path, *, hashes=False):
        if path.name == "step-000003":
            shutil.rmtree(path, ignore_errors=True)
        return read(path, hashes=hashes)

    monkeypatch.setattr(trained, "read_checkpoint", drop)
    assert export(copy, tmp_path / "out") == 2


def test_a_base_model_that_moved(copy, base, tmp_path):
    journal = copy / "journal.jsonl"
    journal.write_text(journal.read_text().replace(str(base), str(tmp_path / "gone")))
    with pytest.raises(UserError, match=r"base model of the run .* cannot be used.*--base DIRECTORY"):
        export(copy, tmp_path / "out")
    assert export(copy, tmp_path / "out", base=base) == 3


def test_another_model_where_the_base_was(copy, tmp_path, base):
    other = tmp_path / "other"
    other.mkdir()
    write_gguf(tmp_path / "other.gguf")
    convert(tmp_path / "other.gguf", other)
    with pytest.raises(UserError, match=r"must fit the base model .*--base"):
        export(copy, tmp_path / "out", base=other)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.glob(".out*")] == []


def test_places_that_are_refused(lora, base, tmp_path):
    run_dir = lora[0]
    with pytest.raises(UserError, match="must not be inside the run"):
        export(run_dir, run_dir / "out")
    with pytest.raises(UserError, match="must not hold the run"):
        export(run_dir, run_dir.parent, force=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    with pytest.raises(UserError, match=r"must not exist, or be empty.*--force"):
        export(run_dir, tmp_path / "full")
    with pytest.raises(UserError, match="holds none"):
        export(run_dir, tmp_path / "full", force=True)
    with pytest.raises(UserError, match="must be a directory"):
        export(run_dir, tmp_path / "full" / "note.txt")
    with pytest.raises(UserError, match="must not replace its own base"):
        export(run_dir, base, force=True)
    with pytest.raises(RunDirectoryError):
        export(tmp_path, tmp_path / "out")


def test_force_replaces_a_model(lora, tmp_path):
    (tmp_path / "empty").mkdir()
    assert export(lora[0], tmp_path / "empty", step=1) == 1
    assert export(lora[0], tmp_path / "empty", step=2, force=True) == 2
    assert "| optimizer steps | 2 |" in (tmp_path / "empty" / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_full_disk_leaves_nothing(lora, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_model", full)
    with pytest.raises(UserError, match="disk was full"):
        export(lora[0], tmp_path / "out")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(UserError, match="MiB left"):
        export(lora[0], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command(lora, tmp_path, capsys):
    assert main(["export", str(lora[0]), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"step 3 of {lora[0]} is in {tmp_path / 'out'}\n"
    assert main(["export", str(lora[0]), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: the directory must not exist, or be empty")
