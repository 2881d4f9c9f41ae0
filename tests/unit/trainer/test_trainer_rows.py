"""What a row says beside its payload: weight, masked versions, advantages of turns; and the step's scale."""

import math

import pytest
import torch

from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import HeadwayError
from headway.core.records import TurnSpan, VersionSpan
from headway.trainer.sequences import build_sequences, count, fetch_rows, without_versions

F64 = torch.float64


def gradient(trainer, rows):
    trainer.zero_grad()
    trainer.forward_backward(rows, trainer.batch_wide(rows))
    return torch.cat([grad.flatten() for grad in trainer.gradients().values()])


def weights(trainer):
    return torch.cat([p.detach().flatten().clone() for p in trainer._policy.trainable().values()])


@pytest.fixture
def trainer(bench, make_model):
    made = bench.trainer(make_model(F64))
    made.step(bench.groups(num_groups=1))  # LoRA's B is zero at first
    return made


# --- weight ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("normaliser", ["token-mean", "seq-mean-token-mean", "prompt-mean"])
def test_a_row_s_weight_multiplies_its_tokens_and_leaves_the_denominators(
    bench, make_model, make_rollout, normaliser
):
    trainer = bench.trainer(make_model(F64), algorithm=AlgorithmSettings(normaliser=normaliser))
    trainer.step(bench.groups(num_groups=1))
    a = bench.row([make_rollout([1, 2], [3, 4])], 1.0)
    b = bench.row([make_rollout([1, 2], [5, 6, 7])], -1.0)
    both, half = gradient(trainer, [a, b]), gradient(trainer, [a._replace(weight=0.5), b])
    without = gradient(trainer, [a._replace(weight=0.0), b])
    torch.testing.assert_close(half, (both + without) / 2, rtol=1e-12, atol=1e-15)
    assert trainer.batch_wide([a._replace(weight=0.5), b]) == trainer.batch_wide([a, b])


@pytest.mark.parametrize("weight", [-0.5, math.nan, math.inf])
def test_a_weight_is_finite_and_not_negative(bench, trainer, make_rollout, weight):
    row = bench.row([make_rollout([1], [2])], weight=weight)
    with pytest.raises(
        HeadwayError, match=rf"the weight of rollout {row.rollout} must be finite and at least 0"
    ):
        trainer.step([row])


# --- masked versions ------------------------------------------------------------------------------


def test_tokens_of_masked_versions_are_as_if_they_had_never_been_trainable(bench, trainer, make_sample):
    ids, spans = [1, 2, 3, 4, 5, 6], [VersionSpan(0, 1, 2), VersionSpan(1, 1, 1), VersionSpan(0, 3, 1)]
    mixed = make_sample(ids, [0, 1, 1, 0, 1, 1], spans=spans)
    newest = make_sample(ids, [0, 0, 0, 0, 1, 1], spans=spans[1:])
    other = make_sample([1, 2, 7], [0, 0, 1])
    masked = [bench.row([mixed], masked=((0, 1),)), bench.row([other], -1.0)]
    plain = [bench.row([newest]), bench.row([other], -1.0)]
    assert torch.equal(gradient(trainer, masked), gradient(trainer, plain))
    denominators = trainer.batch_wide(masked).denominators
    assert (denominators.num_tokens, denominators.num_sequences) == (3, 2)


def test_a_rollout_whose_versions_are_all_masked_leaves_the_batch(bench, trainer, make_rollout):
    gone = bench.row([make_rollout([1, 2], [3, 4])], masked=((0, 0),))
    left = bench.row([make_rollout([1, 2], [5])])
    assert trainer.batch_wide([gone, left]).denominators.num_sequences == 1
    assert trainer.step([gone, left]).num_trained_tokens == 1
    with pytest.raises(HeadwayError, match="at least one trained token"):
        trainer.step([gone])


def test_masking_keeps_turns_and_flags_in_step(make_sample):
    spans, turns = [VersionSpan(0, 1, 1), VersionSpan(0, 2, 2)], [(0, 2), (1, 1)]
    cut = without_versions(make_sample([9, 1, 2, 9, 3], [0, 1, 1, 0, 1], spans=spans, turns=turns), [(0, 1)])
    assert list(cut.trainable) == [0, 0, 1, 0, 1]
    assert (cut.spans, cut.turns) == ([VersionSpan(0, 2, 2)], [TurnSpan(0, 1), TurnSpan(1, 1)])


# --- turns ----------------------------------------------------------------------------------------


def test_every_token_of_a_turn_carries_its_turn_s_advantage(bench, make_sample):
    sample = make_sample([9, 1, 2, 9, 3], [0, 1, 1, 0, 1], turns=[(0, 2), (1, 1)])
    branch = make_sample([9, 1, 4], [0, 0, 1], turns=[(2, 1)])
    fetched = fetch_rows([bench.row([sample, branch], turns=(0.5, -1.0, 2.0))], bench.root / "payloads", 48)
    found = build_sequences(fetched, count(fetched), AlgorithmSettings(), steps=0, lineage=None)
    assert [list(sequence.advantages) for sequence in found] == [[0.5, 0.5, -1.0], [2.0]]


@pytest.mark.parametrize("turns", [(), [(0, 1)], [(1, 2)]])
def test_turns_that_do_not_cover_the_trained_tokens_are_refused(bench, trainer, make_rollout, turns):
    with pytest.raises(HeadwayError, match="the 1 turns of rollout r"):
        trainer.step([bench.row([make_rollout([1], [2, 3], turns=turns)], turns=(1.0,))])


# --- step -----------------------------------------------------------------------------------------


def test_lr_scale_multiplies_the_learning_rate_of_one_step(bench, make_model):
    rows = bench.groups(num_groups=1)
    moves = []
    for scale in (1.0, 0.5):
        trainer = bench.trainer(make_model(F64), learning_rate=1e-2)
        before = weights(trainer)
        assert trainer.step(rows, scale).metrics["learning_rate"] == 1e-2 * scale
        moves.append(weights(trainer) - before)
        assert trainer.step(rows).metrics["learning_rate"] == 1e-2
    torch.testing.assert_close(moves[1], moves[0] / 2, rtol=1e-9, atol=1e-15)


def test_the_step_says_what_was_clipped_masked_weighed_and_how_far_the_policies_are(bench, make_model):
    rows = bench.groups()
    plain = bench.trainer(make_model(F64)).step(rows).metrics
    assert plain["mask_fraction"] == 0 < plain["clip_fraction"]
    assert plain["ratio_max"] > plain["ratio_mean"] > 0
    assert plain["mismatch_kl"] > 0
    tokens = torch.tensor([abs(row.advantage) for row in rows]).double()
    lengths = torch.tensor([2 + (3 * (i % 4) + i // 4) % 7 for i in range(12)])
    expected = (tokens * lengths).sum() / lengths.sum()
    assert plain["advantage_abs_mean"] == pytest.approx(expected.item())
    assert "correction_mean" not in plain
    corrected = AlgorithmSettings(correction="mis")
    metrics = bench.trainer(make_model(F64), algorithm=corrected).step(rows).metrics
    assert metrics["clip_fraction"] == 0 < metrics["mask_fraction"] < 1
    assert metrics["correction_mean"] > 0
    assert metrics["mismatch_kl"] == pytest.approx(plain["mismatch_kl"])


def test_the_kl_penalty_is_to_the_model_that_the_run_began_from(bench, make_model):
    rows = [row._replace(advantage=0.0) for row in bench.groups(num_groups=1)]
    algorithm = AlgorithmSettings(kl_coef=1.0, kl_estimator="k2")
    trainer = bench.trainer(make_model(F64), algorithm=algorithm, learning_rate=1e-2)
    assert trainer.step(rows).metrics["kl_reference"] == pytest.approx(0, abs=1e-20)
    moved = [row._replace(advantage=1.0) for row in rows]
    for _ in range(3):
        trainer.step(moved)
    away = trainer.step(rows).metrics["kl_reference"]
    for _ in range(20):
        last = trainer.step(rows).metrics["kl_reference"]
    assert 0 < last < away / 4
    with pytest.raises(HeadwayError, match="the reference policy is kept with LoRA only"):
        bench.trainer(full=True, algorithm=algorithm)
