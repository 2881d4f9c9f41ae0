"""What any `headway.core.protocols.Trainer` does; `make_trainer` builds the one under test."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Row
from headway.core.errors import HeadwayError
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import TrainingSample, VersionSpan
from headway.trainer.local import LocalTrainer
from headway.trainer.settings import TrainerSettings


@pytest.fixture(params=["lora", "full"])
def make_trainer(request, tmp_path):
    def make():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
        return LocalTrainer(
            LlamaForCausalLM(config),
            TrainerSettings(full=request.param == "full"),
            AlgorithmSettings(),
            payload_dir=tmp_path / "payloads",
            weights_dir=tmp_path / "weights",
            checkpoint_dir=tmp_path / "checkpoints",
        )

    return make


@pytest.fixture
def rows(tmp_path):
    writer = PayloadWriter(tmp_path / "payloads", "p0")
    made = []
    for index in range(4):
        sample = TrainingSample(
            array("i", [1, 2, 3, 4 + index, 5]),
            array("b", [0, 0, 0, 1, 1]),
            array("f", [0, 0, 0, -3.0, -3.5]),
            [VersionSpan(0, 0, 2)],
            1.0,
        )
        reference = writer.append(Payload(f"r{index}", "t", [sample], {}))
        made.append(Row(f"r{index}", "g", reference, index - 1.5))
    return made


def test_a_step_reports_its_tokens_and_metrics(make_trainer, rows):
    result = make_trainer().step(rows)
    assert result.num_trained_tokens == 8
    assert result.num_tokens > 0
    assert {"loss", "grad_norm", "learning_rate"} <= result.metrics.keys()


def test_a_step_may_be_taken_at_a_part_of_the_learning_rate(make_trainer, rows):
    whole, half = make_trainer().step(rows), make_trainer().step(rows, 0.5)
    assert half.metrics["learning_rate"] == whole.metrics["learning_rate"] / 2


def test_a_published_version_is_a_manifest_that_is_there(make_trainer, rows):
    trainer = make_trainer()
    trainer.step(rows)
    manifest, num_bytes = trainer.publish(0, 1)
    assert Path(manifest).is_file()
    assert num_bytes > 0


def test_a_loaded_checkpoint_goes_on_as_the_saved_trainer_did(make_trainer, rows):
    trainer = make_trainer()
    trainer.step(rows)
    path = trainer.save(1)
    expected = trainer.step(rows)
    resumed = make_trainer()
    resumed.load(path)
    assert resumed.step(rows) == expected


def test_rows_that_do_not_resolve_and_absent_checkpoints_are_errors(make_trainer, rows):
    trainer = make_trainer()
    with pytest.raises(HeadwayError):
        trainer.step([rows[0]._replace(payload="p0:999999:10")])
    with pytest.raises(HeadwayError):
        trainer.load("no-such-checkpoint")
