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
from headway.core.protocols import OptimSettings
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


# --- several callers ------------------------------------------------------------------------------


def after(trainer, rows):
    """Log-probs of rows, flat: what a trainer's weights say."""
    return torch.cat([logp for row in trainer.forward(rows) for logp in row])


def test_parts_in_any_order_make_the_step_that_the_whole_batch_makes(make_trainer, rows):
    whole, parts = make_trainer(), make_trainer()
    expected = whole.step(rows).metrics
    wide = parts.batch_wide(rows)
    sums = [parts.forward_backward(part, wide) for part in ([rows[2]], [rows[0], rows[3]], [rows[1]])]
    metrics = parts.optim_step()
    assert sum(part.loss for part in sums) == pytest.approx(expected["loss"], abs=1e-6)
    assert sum(part.num_trained_tokens for part in sums) == 8
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    torch.testing.assert_close(after(parts, rows), after(whole, rows), rtol=1e-5, atol=1e-6)


def test_callers_may_take_turns(make_trainer, rows):
    """Two batches, each with its own denominators, part by part: the gradient is the sum of theirs."""
    one, other = rows[:2], rows[2:]
    turns, apart = make_trainer(), make_trainer()
    of_one, of_other = turns.batch_wide(one), turns.batch_wide(other)
    for part, wide in ((one[0], of_one), (other[1], of_other), (one[1], of_one), (other[0], of_other)):
        turns.forward_backward([part], wide)
    apart.forward_backward(one, of_one)
    apart.forward_backward(other, of_other)
    assert turns.optim_step()["grad_norm"] == pytest.approx(apart.optim_step()["grad_norm"], rel=1e-5)
    torch.testing.assert_close(after(turns, rows), after(apart, rows), rtol=1e-5, atol=1e-6)


def test_a_step_applies_the_gradient_and_forgets_it(make_trainer, rows):
    trainer = make_trainer()
    before = after(trainer, rows)
    trainer.forward_backward(rows, trainer.batch_wide(rows))
    assert torch.equal(after(trainer, rows), before)
    trainer.optim_step()
    assert not torch.equal(after(trainer, rows), before)
    with pytest.raises(HeadwayError, match="nothing was added since the last one"):
        trainer.optim_step()
    trainer.forward_backward(rows, trainer.batch_wide(rows))
    trainer.zero_grad()
    with pytest.raises(HeadwayError, match="needs a gradient"):
        trainer.optim_step()


def test_a_step_may_have_settings_of_its_own(make_trainer, rows):
    def moved(settings=None, **more):
        trainer = make_trainer()
        start = after(trainer, rows)
        trainer.forward_backward(rows, trainer.batch_wide(rows))
        metrics = trainer.optim_step(settings, **more)
        return metrics["learning_rate"], (after(trainer, rows) - start).abs().sum().item()

    own_rate, own = moved()
    rate, far = moved(OptimSettings(learning_rate=10 * own_rate))
    assert rate == pytest.approx(10 * own_rate)
    assert far > 5 * own
    assert moved(OptimSettings(learning_rate=10 * own_rate), lr_scale=0.1) == pytest.approx((own_rate, own))
    assert moved(OptimSettings(max_grad_norm=1e-12))[1] < own / 2  # Adam's eps is large against it
    assert moved(OptimSettings(eps=1.0))[1] < own / 2


def test_settings_of_one_step_are_not_those_of_the_next(make_trainer, rows):
    one, other = make_trainer(), make_trainer()
    for trainer, settings in ((one, OptimSettings(beta1=0.1, weight_decay=0.5)), (other, None)):
        trainer.forward_backward(rows, trainer.batch_wide(rows))
        trainer.optim_step(settings, lr_scale=0.0)
    rates = [trainer.step(rows).metrics["learning_rate"] for trainer in (one, other)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("bad", ["payload", "advantage"])
def test_rows_that_are_refused_leave_what_the_others_added(make_trainer, rows, bad):
    spoiled = rows[1]._replace(payload="p0:999999:10") if bad == "payload" else None
    spoiled = spoiled or rows[1]._replace(advantage=float("nan"))
    undisturbed, disturbed = make_trainer(), make_trainer()
    for trainer in (undisturbed, disturbed):
        wide = trainer.batch_wide(rows)
        trainer.forward_backward(rows[:2], wide)
        if trainer is disturbed:
            with pytest.raises(HeadwayError):
                trainer.forward_backward([rows[2], spoiled], wide)
        trainer.forward_backward(rows[2:], wide)
    assert disturbed.optim_step() == undisturbed.optim_step()
    assert torch.equal(after(disturbed, rows), after(undisturbed, rows))


# --- a step that begins before its batch is complete ----------------------------------------------


def test_a_step_may_begin_before_its_batch_is_complete(make_trainer, rows):
    rows = [row._replace(group=f"g{index // 2}") for index, row in enumerate(rows)]
    whole, begun = make_trainer(), make_trainer()
    assert begun.gather(rows[:2]) > 0
    expected, found = whole.step(rows), begun.step(rows, num_gathered=2)
    assert found.num_trained_tokens == expected.num_trained_tokens
    assert found.num_tokens == expected.num_tokens
    assert found.metrics == pytest.approx(
        expected.metrics | found.metrics.fromkeys(["num_micro_batches"], 2.0)
    )
    torch.testing.assert_close(after(begun, rows), after(whole, rows), rtol=1e-5, atol=1e-6)


def test_a_begun_step_goes_on_with_the_rows_that_it_began_with(make_trainer, rows):
    rows = [row._replace(group=f"g{index}") for index, row in enumerate(rows)]
    trainer = make_trainer()
    trainer.gather(rows[:2])
    with pytest.raises(HeadwayError, match="between gather and the step that it began"):
        trainer.optim_step()
    with pytest.raises(HeadwayError, match="those that were handed over before"):
        trainer.step(rows[::-1], num_gathered=2)
    trainer.step(rows)  # as if nothing had been gathered
    with pytest.raises(HeadwayError, match="those that were handed over before"):
        trainer.step(rows, num_gathered=2)
    trainer.gather(rows[:2])
    with pytest.raises(HeadwayError, match="a group must be in one part"):
        trainer.gather([rows[1]])


@pytest.mark.parametrize(
    ("settings", "lr_scale", "name"),
    [
        ({"learning_rate": float("nan")}, 1.0, "learning_rate"),
        ({"learning_rate": -1.0}, 1.0, "learning_rate"),
        ({"max_grad_norm": float("nan")}, 1.0, "max_grad_norm"),
        ({"max_grad_norm": 0.0}, 1.0, "max_grad_norm"),
        ({"beta1": 1.0}, 1.0, "beta1"),
        ({"beta2": float("nan")}, 1.0, "beta2"),
        ({"eps": 0.0}, 1.0, "eps"),
        ({"weight_decay": float("inf")}, 1.0, "weight_decay"),
        ({}, float("nan"), "lr_scale"),
        ({}, -1.0, "lr_scale"),
    ],
)
def test_an_optimizer_step_of_nonsense_moves_nothing(make_trainer, rows, settings, lr_scale, name):
    trainer = make_trainer()
    trainer.forward_backward(rows, trainer.batch_wide(rows))
    before = {key: gradient.clone() for key, gradient in trainer.gradients().items()}
    with pytest.raises(HeadwayError, match=name):
        trainer.optim_step(OptimSettings(**settings), lr_scale=lr_scale)
    assert trainer.steps == 0
    assert all(torch.equal(gradient, before[key]) for key, gradient in trainer.gradients().items())
    assert trainer.optim_step()["nonfinite"] == 0.0
