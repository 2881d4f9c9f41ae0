"""Losses on flat tensors of tokens, and the normaliser."""

import math

import pytest
import torch

from headway.algorithms.corrections import load_correction
from headway.algorithms.losses import LOSSES, BatchLogps, load_loss
from headway.algorithms.losses.apply import LossInputs, apply_loss
from headway.algorithms.normaliser import Denominators, token_weight
from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import HeadwayError


def run(logp, mu, advantages, weights=None, name="grpo", sequences=None, reference=None, **settings):
    """A loss on a whole batch of tokens, one sequence unless said otherwise."""
    chosen = AlgorithmSettings(loss=name, **settings)
    logp = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    weights = [1.0] * len(logp) if weights is None else weights
    mu, advantages, weights = (torch.tensor(v, dtype=torch.float64) for v in (mu, advantages, weights))
    loss, correction = load_loss(chosen), load_correction(chosen)
    keep = None
    if loss.batch is not None:
        old, on = logp.detach(), weights > 0
        anchor = mu if correction is None else old
        keep = torch.ones(len(logp), dtype=torch.bool)
        keep[on] = loss.batch(BatchLogps(old[on], mu[on], anchor[on], advantages[on]), chosen)
    sequences = torch.tensor([0] * len(logp) if sequences is None else sequences)
    reference = None if reference is None else torch.tensor(reference, dtype=torch.float64)
    inputs = LossInputs(logp, mu, advantages, weights, sequences, keep, reference)
    output = apply_loss(loss, inputs, chosen, correction)
    output.total.backward()
    return output, logp.grad


def log(*values):
    return [math.log(value) for value in values]


# --- losses ---------------------------------------------------------------------------------------


def test_grpo_takes_the_smaller_of_ratio_and_clipped_ratio():
    # A > 0: r = 1.1 inside, 1.5 cut at 1.2, 0.5 not cut. A < 0: 0.5 cut at 0.8, 1.5 not cut, 5 capped at 3.
    ratios = [1.1, 1.5, 0.5, 0.5, 1.5, 5.0]
    output, grad = run(log(*ratios), [0.0] * 6, [1, 1, 1, -1, -1, -1])
    assert output.per_token.tolist() == pytest.approx([-1.1, -1.2, -0.5, 0.8, 1.5, 3.0])
    assert grad.tolist() == pytest.approx([-1.1, 0, -0.5, 0, 1.5, 0])
    assert output.sums["clipped"] == 3


def test_dual_clip_0_sets_no_bound():
    output, grad = run(log(5.0), [0.0], [-1], dual_clip=0.0)
    assert (output.total.item(), grad.item()) == pytest.approx((5.0, 5.0))


def test_clip_high_alone_moves_the_upper_bound():
    output, _ = run(log(1.25, 1.35), [0.0, 0.0], [1, 1], clip_high=0.28)
    assert output.per_token.tolist() == pytest.approx([-1.25, -1.28])


def test_stale_data_has_a_clip_fraction_above_zero_although_one_step_is_taken():
    fresh, _ = run([-1.0, -2.0], [-1.0, -2.0], [1, -1])
    stale, _ = run([-1.0, -2.0], [-1.5, -1.5], [1, -1])
    assert fresh.sums["clipped"] == 0
    assert stale.sums["clipped"] == 2


def test_reinforce_is_weighs_by_the_ratio_cut_at_the_cap():
    ratios = [0.5, 1.5, 7.0]
    output, grad = run(log(*ratios), [0.0] * 3, [1, -1, 2], name="reinforce_is", importance_cap=2.0)
    assert grad.tolist() == pytest.approx([-0.5, 1.5, -2 * 2.0])
    assert output.per_token.tolist() == pytest.approx(
        [-0.5 * math.log(0.5), 1.5 * math.log(1.5), -4 * math.log(7)]
    )
    assert output.sums["clipped"] == 1


@pytest.mark.parametrize("name", LOSSES.names)
def test_on_policy_the_gradient_is_that_of_reinforce(name):
    _, grad = run([-1.0, -3.0], [-1.0, -3.0], [0.7, -1.2], name=name)
    assert grad.tolist() == pytest.approx([-0.7, 1.2])


def test_kl_estimates_and_ratio_have_their_exact_values():
    output, _ = run(log(0.5, 0.25), log(0.25, 0.5), [1, 1])
    assert output.sums["ratio"] == pytest.approx(2.5)
    assert output.sums["kl_k1"] == pytest.approx(0, abs=1e-15)
    assert output.sums["kl_k3"] == pytest.approx((2 - math.log(2) - 1) + (0.5 + math.log(2) - 1))


@pytest.mark.parametrize("name", LOSSES.names)
def test_an_impossible_token_keeps_loss_and_gradient_finite(name):
    output, grad = run([0.0, -1e9], [-1e9, 0.0], [1, 1], name=name)
    assert output.total.isfinite()
    assert grad.isfinite().all()


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES.names)
@pytest.mark.parametrize("junk", [math.nan, 1e9, -math.inf])
def test_what_is_under_a_mask_changes_neither_loss_nor_gradient_by_a_bit(name, junk):
    clean, clean_grad = run([-1.0, -2.0, -3.0], [-1.2, -1.7, -3.0], [1, 1, -1], [0.3, 0, 0.7], name=name)
    dirty, dirty_grad = run([-1.0, junk, -3.0], [-1.2, junk, -3.0], [1, junk, -1], [0.3, 0, 0.7], name=name)
    assert torch.equal(clean.total, dirty.total)
    assert torch.equal(clean_grad, dirty_grad)
    assert torch.equal(clean.per_token, dirty.per_token)
    assert clean.sums == dirty.sums
    assert clean.num_tokens == dirty.num_tokens == 2


def test_nan_behind_the_mask_leaves_a_loss_of_minus_1():
    output, grad = run([0.0, 0.0], [0.0, math.nan], [1, 1], [1, 0])
    assert output.total.item() == -1
    assert grad.tolist() == [-1, 0]


def test_a_fully_masked_part_is_zero():
    output, grad = run([0.0], [math.nan], [1], [0])
    assert (output.total.item(), output.num_tokens, grad.tolist()) == (0, 0, [0])


# --- normaliser -----------------------------------------------------------------------------------


def weighted(normaliser, parts, denominators, **settings):
    """Sum a batch's loss over micro-batches of rollouts, each a list of token losses."""
    return math.fsum(
        loss * token_weight(normaliser, denominators, group=group, rollout_tokens=len(losses), **settings)
        for part in parts
        for group, losses in part
        for loss in losses
    )


def test_token_mean_over_micro_batches_is_the_mean_over_all_tokens():
    parts = [[("a", [1.0])], [("b", [0.0, 0.0, 0.0])]]
    assert weighted("token-mean", parts, Denominators(4, 2, 2)) == 0.25


def test_token_mean_of_unequal_rollouts():
    parts = [[("a", [0.5] * 100), ("a", [0.3] * 900)]]
    assert weighted("token-mean", parts, Denominators(1000, 2, 1)) == pytest.approx(0.32, abs=1e-15)


@pytest.mark.parametrize("together", [True, False])
def test_constant_normalisation_does_not_depend_on_the_split(together):
    one, two = ("a", [1.0, 2.0, 3.0]), ("a", [0.0])
    parts = [[one, two]] if together else [[one], [two]]
    assert weighted("constant", parts, Denominators(4, 2, 1), constant_tokens=100) == pytest.approx(0.03)


def test_sequence_mean_and_prompt_mean_have_their_exact_values():
    parts = [[("a", [1.0, 1.0]), ("a", [0.0, 0.0, 0.0, 0.0]), ("b", [0.5])]]
    denominators = Denominators(7, 3, 2, {"a": 6, "b": 1})
    assert weighted("seq-mean-token-mean", parts, denominators) == pytest.approx((1 + 0 + 0.5) / 3)
    assert weighted("prompt-mean", parts, denominators) == pytest.approx((2 / 6 + 0.5) / 2)


def test_denominators_that_miss_the_rollout_are_refused():
    with pytest.raises(HeadwayError, match="prompt-mean needs denominators"):
        token_weight("prompt-mean", Denominators(4, 1, 1, {"a": 4}), group="b", rollout_tokens=4)
    with pytest.raises(HeadwayError, match="token-mean needs denominators"):
        token_weight("token-mean", Denominators(3, 1, 1), group="a", rollout_tokens=4)
