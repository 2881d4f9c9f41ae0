"""Checkpoints and published versions of a trainer."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import LlamaForCausalLM

from headway.core.errors import HeadwayError, UserError
from headway.trainer.checkpoints import (
    complete_checkpoints,
    discard_after,
    find_checkpoint,
    read_checkpoint,
    writing,
)
from headway.weights.read import WeightReader


def weights(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer._policy.trainable().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_step_after_a_resume_is_the_same_to_the_bit(bench, make_model, dtype, full):
    settings = {
        "full": full,
        "learning_rate": 0.003,
        "warmup_steps": 4,
        "schedule": "linear",
        "decay_steps": 9,
    }
    batches = [bench.groups(seed=seed) for seed in range(4)]
    trainer = bench.trainer(make_model(dtype), **settings)
    trainer.step(batches[0])
    trainer.step(batches[1])
    path = trainer.save(2)
    expected = [trainer.step(batch) for batch in batches[2:]]

    resumed = bench.trainer(make_model(dtype), seed=99, **settings)
    resumed.load(path)
    assert resumed.steps == 2
    assert [resumed.step(batch) for batch in batches[2:]] == expected
    assert same(weights(resumed), weights(trainer))


def test_an_adapter_checkpoint_is_loadable_by_peft(bench, make_model):
    trainer = bench.trainer(learning_rate=0.01)
    rows = bench.groups(num_groups=1)
    trainer.step(rows)
    path = trainer.save(1)
    model = PeftModel.from_pretrained(make_model(), f"{path}/adapter").eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    own = trainer._policy._base
    torch.testing.assert_close(model(input_ids=ids).logits, own(input_ids=ids).logits)
    assert not torch.allclose(model(input_ids=ids).logits, make_model()(input_ids=ids).logits)


@pytest.mark.parametrize("tied", [True, False])
def test_a_full_checkpoint_is_loadable_by_transformers(bench, make_model, tied):
    trainer = bench.trainer(make_model(tied=tied), full=True)
    trainer.step(bench.groups(num_groups=1))
    path = trainer.save(1)
    model = LlamaForCausalLM.from_pretrained(f"{path}/model", dtype=torch.float32)
    ids = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(model(input_ids=ids).logits, trainer._policy._base(input_ids=ids).logits)


@pytest.mark.parametrize("full", [False, True])
def test_published_weights_give_the_trainers_logprobs(bench, make_model, full):
    trainer = bench.trainer(learning_rate=0.01, full=full)
    trainer.step(bench.groups(num_groups=1))
    manifest, num_bytes = trainer.publish(0, 1)
    replica = make_model()
    base = {name: parameter.detach().clone() for name, parameter in replica.named_parameters()}
    own = dict(replica.named_parameters())
    changed = 0
    with torch.no_grad():
        for name, tensor in WeightReader(base).read(manifest):
            changed += not torch.equal(own[name], tensor)
            own[name].copy_(tensor)
    ids = torch.tensor([[1, 2, 3, 4]])
    expected = trainer._policy._base(input_ids=ids).logits
    torch.testing.assert_close(replica(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)
    assert changed >= 14
    assert num_bytes > 0


def test_versions_and_checkpoints_are_numbered_by_the_steps_applied(bench):
    trainer = bench.trainer()
    with pytest.raises(HeadwayError, match="version's number must be the 0"):
        trainer.publish(0, 1)
    with pytest.raises(HeadwayError, match="checkpoint's step must be the 0"):
        trainer.save(1)


def test_resume_never_picks_an_incomplete_checkpoint(tmp_path):
    for step in (1, 2, 3):
        with writing(tmp_path, step, {"kind": "lora"}) as staging:
            (staging / "weights").write_bytes(b"12345678")
    assert find_checkpoint(tmp_path)[0] == tmp_path / "step-000003"
    (tmp_path / "step-000003" / "weights").write_bytes(b"1234")  # cut short
    assert find_checkpoint(tmp_path)[0] == tmp_path / "step-000002"
    (tmp_path / "step-000002" / "manifest.json").write_text('{"format": 1, "fi')
    assert find_checkpoint(tmp_path)[0] == tmp_path / "step-000001"
    (tmp_path / "step-000001" / "weights").unlink()
    (tmp_path / ".partial-step-000004").mkdir()
    (tmp_path / "step-000005").mkdir()
    assert find_checkpoint(tmp_path)[0] is None
    assert find_checkpoint(tmp_path / "absent")[0] is None
    with pytest.raises(HeadwayError, match="is incomplete: weights must have 8 bytes"):
        read_checkpoint(tmp_path / "step-000001")


def test_a_damaged_checkpoint_is_passed_over_and_never_loaded(bench):
    rows = bench.groups(num_groups=1)
    trainer = bench.trainer()
    paths = []
    for step in (1, 2):
        trainer.step(rows)
        paths.append(Path(trainer.save(step)))
    damaged = paths[1] / "trainer.pt"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    assert find_checkpoint(paths[0].parent)[0] == paths[0]
    with pytest.raises(HeadwayError, match=r"is damaged: the SHA-256 of trainer\.pt"):
        bench.trainer().load(str(paths[1]))


def test_a_checkpoint_of_a_lost_branch_is_never_gone_on_from(tmp_path):
    for step, lineage in ((2, 0), (4, 0), (6, 0), (5, 1)):
        with writing(tmp_path, step, {}, lineage=lineage) as staging:
            (staging / "weights").write_bytes(b"12345678")
    newest = [
        (forks, find_checkpoint(tmp_path, forks)[0])
        for forks in ([], [6], [4], [2], [4, 5], [4, 4], [4, 3], [1, 1])
    ]
    assert [(forks, path and int(path.name[-1])) for forks, path in newest] == [
        ([], 6),
        ([6], 6),
        ([4], 5),
        ([2], 5),
        ([4, 5], 5),
        ([4, 4], 4),
        ([4, 3], 2),
        ([1, 1], None),
    ]
    discard_after(tmp_path, 4)
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-000002", "step-000004"]


@pytest.mark.parametrize("full", [False, True])
def test_a_checkpoint_written_while_training_goes_on_is_of_its_own_step(bench, full):
    rows = bench.groups(num_groups=1)
    trainer = bench.trainer(full=full, learning_rate=0.01)
    trainer.step(rows)
    then = weights(trainer)
    write = trainer.capture(1, lineage=3)
    expected = [trainer.step(rows), trainer.step(rows)]
    path = write()
    assert read_checkpoint(Path(path), hashes=True)["lineage"] == 3
    resumed = bench.trainer(full=full, learning_rate=0.01)
    resumed.load(path)
    assert same(weights(resumed), then)
    assert [resumed.step(rows), resumed.step(rows)] == expected


def test_the_optimizers_settings_are_those_of_the_resumed_run_not_of_the_checkpoint(bench):
    rows = bench.groups(num_groups=1)
    trainer = bench.trainer(weight_decay=0.0, beta1=0.9)
    trainer.step(rows)
    path = trainer.save(1)
    resumed = bench.trainer(weight_decay=0.5, beta1=0.8, learning_rate=0.25)
    resumed.load(path)
    (group,) = resumed._update._optimizer.param_groups
    assert (group["weight_decay"], group["betas"]) == (0.5, (0.8, 0.999))
    assert resumed.step(rows).metrics["learning_rate"] == 0.25


def test_a_save_that_fails_leaves_the_last_checkpoint_as_it_was(bench, monkeypatch):
    trainer = bench.trainer()
    first = trainer.save(0)

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(HeadwayError, match=r"step-000000 must be written .*no space left"):
        trainer.save(0)
    assert str(find_checkpoint(bench.root / "run" / "checkpoints")[0]) == first
    bench.trainer().load(first)


def test_only_the_newest_checkpoints_stay_and_those_of_a_lost_branch_go(bench):
    rows = bench.groups(num_groups=1)
    trainer = bench.trainer(keep_checkpoints=2)
    for step in range(1, 5):
        trainer.step(rows)
        trainer.save(step)
    directory = bench.root / "run" / "checkpoints"
    assert [path.name for path in complete_checkpoints(directory)] == ["step-000003", "step-000004"]
    trainer.load(str(directory / "step-000003"))
    trainer.save(3)
    assert [path.name for path in complete_checkpoints(directory)] == ["step-000003"]


def test_a_checkpoint_of_other_settings_is_refused(bench, make_model):
    trainer = bench.trainer()
    path = trainer.save(0)
    with pytest.raises(UserError, match="must hold model/"):
        bench.trainer(full=True).load(path)
    with pytest.raises(UserError, match="must fit the model"):
        bench.trainer(lora_rank=8).load(path)
    with pytest.raises(UserError, match="lora_alpha must be 32"):
        bench.trainer(lora_alpha=8.0).load(path)
    manifest = json.loads((bench.root / "run/checkpoints/step-000000/manifest.json").read_text())
    assert manifest["kind"] == "lora"
    with pytest.raises(HeadwayError, match="must have a readable manifest"):
        trainer.load(str(bench.root))
