"""Losses on flat tensors of tokens, and the normaliser."""

import math

import pytest
import torch

from headway.algorithms.corrections import load_correction
from headway.algorithms.losses import LOSSES, BatchLogps, as_policy_loss, load_loss
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


def mean_of_all(logp, behaviour_logp, advantages, settings):
    return -(advantages * logp).mean(), logp > 0


def no_clipping_told(logp, behaviour_logp, advantages, settings):
    return -advantages * logp


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (mean_of_all, r"per_token as a tensor, one entry a token \(3\) \(got \(\)\)"),
        (no_clipping_told, r"must return two tensors: .* \(got 'Tensor'\)"),
    ],
)
def test_a_loss_that_is_not_one_number_for_each_token_is_refused(loss, words):
    logp = torch.zeros(3, requires_grad=True)
    inputs = LossInputs(logp, logp.detach(), torch.ones(3), torch.ones(3), torch.zeros(3).long(), None, None)
    with pytest.raises(HeadwayError, match=words):
        apply_loss(as_policy_loss(loss), inputs, AlgorithmSettings(loss="cispo"))


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


def test_gspo_clips_the_sequence_s_ratio_and_shares_it_out():
    # Ratios 2 and 1/2 of one sequence: s = 1. Ratios 1.21 and 1 of the other: s = 1.1.
    ratios, sequences = [2.0, 0.5, 1.21, 1.0], [0, 0, 1, 1]
    wide = {"gspo_clip_low": 0.2, "gspo_clip_high": 0.2}
    output, grad = run(log(*ratios), [0.0] * 4, [1, 1, 1, 1], name="gspo", sequences=sequences, **wide)
    assert output.per_token.tolist() == pytest.approx([-1, -1, -1.1, -1.1])
    assert grad.tolist() == pytest.approx([-1, -1, -1.1, -1.1])
    assert output.sums["clipped"] == 0
    output, grad = run(log(*ratios), [0.0] * 4, [1, 1, 1, 1], name="gspo", sequences=sequences)
    assert output.per_token.tolist() == pytest.approx([-1, -1, -1.0004, -1.0004])
    assert grad.tolist() == pytest.approx([-1, -1, 0, 0])
    assert output.sums["clipped"] == 2
    output, grad = run(log(0.9, 0.9), [0.0] * 2, [-1, -1], name="gspo")
    assert output.per_token.tolist() == pytest.approx([0.9997] * 2)
    assert grad.tolist() == [0, 0]


def test_cispo_clips_the_weight_at_absolute_bounds_and_keeps_every_gradient():
    bounds = {"cispo_min_weight": 0.5, "cispo_max_weight": 1.28}
    output, grad = run(log(0.25, 1.0, 2.0), [0.0] * 3, [1, -1, 2], name="cispo", **bounds)
    assert grad.tolist() == pytest.approx([-0.5, 1.0, -2.56])
    assert output.sums["clipped"] == 2


def test_aipo_is_reinforce_is_by_another_name():
    batch = (log(0.5, 7.0), [0.0] * 2, [1, -1])
    assert torch.equal(run(*batch, name="aipo")[1], run(*batch, name="reinforce_is")[1])


def test_decoupled_weighs_by_pi_old_over_mu_without_a_bound():
    output, grad = run(log(0.5, 3.0, 40.0), [0.0] * 3, [1, -1, 1], name="decoupled")
    assert output.per_token.tolist() == pytest.approx([-0.5, 3.0, -40.0])
    assert grad.tolist() == pytest.approx([-0.5, 3.0, -40.0])
    assert output.sums["clipped"] == 0  # one step a batch: pi is pi_old


def test_dppo_masks_by_the_difference_of_probabilities():
    # pi - mu: 0.25 up, 0.15 up, 0.25 down, 0.25 down. A: up, up, down, up.
    pi, mu = (0.5, 0.65, 0.25, 0.25), (0.25, 0.5, 0.5, 0.5)
    output, grad = run(log(*pi), log(*mu), [1, 1, -1, 1], name="dppo", dppo_kl=0.0)
    assert output.per_token.tolist() == pytest.approx([0, -1.3, 0, -0.5])
    assert grad.tolist() == pytest.approx([0, -1.3, 0, -0.5])
    assert (output.sums["masked"], output.sums["clipped"]) == (2, 0)


def test_dppo_s_quadratic_term_pulls_masked_tokens_back_too():
    output, grad = run(log(0.5), log(0.25), [1], name="dppo")
    assert output.total.item() == pytest.approx(1e-3 * math.log(2) ** 2)
    assert grad.item() == pytest.approx(2e-3 * math.log(2))


def test_m2po_leaves_out_the_largest_until_the_mean_square_is_below_its_threshold():
    # Squares 0, 0.01, 0.09, 0.25: means 0, 0.005, 0.0333, 0.0875.
    gaps = [0.3, 0.0, -0.5, 0.1]
    output, grad = run(gaps, [0.0] * 4, [1, 1, 1, -1], name="m2po")
    assert grad.tolist() == pytest.approx([-math.exp(0.3), -1, 0, math.exp(0.1)])
    assert output.sums["masked"] == 1
    assert run(gaps, [0.0] * 4, [1] * 4, name="m2po", m2po_threshold=0.09)[0].sums["masked"] == 0
    assert run([1.0], [0.0], [1], name="m2po")[0].total.item() == 0


def test_m2po_keeps_or_drops_equal_tokens_together():
    # Squares 0, 0.09, 0.09: means 0, 0.045, 0.06.
    assert run([0.3, 0.0, -0.3], [0.0] * 3, [1] * 3, name="m2po")[0].sums["masked"] == 2
    # Means 0, 0, 0.03, 0.045: the third would stay, its equal may not.
    assert run([0.3, 0.0, 0.0, -0.3], [0.0] * 4, [1] * 4, name="m2po")[0].sums["masked"] == 2


# --- corrections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ("tis", [0.25, 1.5, 2.0, 2.0]),
        ("mis", [0, 1.5, 0, 0]),
        ("icepop", [0, 1.5, 3.0, 0]),
    ],
)
def test_a_correction_weighs_any_loss_by_pi_old_over_mu(correction, weights):
    batch = (log(0.25, 1.5, 3.0, 8.0), [0.0] * 4, [1, -1, 1, 1])
    for name in ("grpo", "reinforce_is", "cispo"):
        output, grad = run(*batch, name=name, correction=correction)
        signed = [-w * a for w, a in zip(weights, batch[2], strict=True)]
        assert grad.tolist() == pytest.approx(signed)
        assert output.sums["correction"] == pytest.approx(sum(weights))
        assert output.sums["masked"] == weights.count(0)
        assert output.sums["clipped"] == 0  # the ratio is pi/pi_old


def test_nothing_is_corrected_twice():
    """decoupled is grpo with an unbounded weight."""
    batch = (log(0.6, 1.9), [0.0] * 2, [1, -1])
    assert run(*batch, correction="tis")[1].tolist() == pytest.approx(
        run(*batch, name="decoupled")[1].tolist()
    )


@pytest.mark.parametrize(("level", "weight"), [("sequence", 1.5), ("geometric", math.sqrt(1.5))])
def test_a_correction_may_take_the_ratio_of_the_sequence(level, weight):
    batch = (log(3.0, 0.5, 1.25), [0.0] * 3, [1, 1, 1])
    _, grad = run(*batch, sequences=[0, 0, 1], correction="mis", correction_level=level)
    assert grad.tolist() == pytest.approx([-weight, -weight, -1.25])


@pytest.mark.parametrize("advantage", [1, -1])
def test_sequence_masking_drops_only_bad_sequences_that_the_policy_has_left(advantage):
    # Means of log mu - log pi: log 2 (left), and log(3/2) / 2 (within 0.5).
    batch = (log(0.25, 1.0, 1.0, 2 / 3), [0.0] * 4, [advantage] * 4)
    settings = {"sequences": [0, 0, 1, 1], "sequence_mask_delta": 0.5, "name": "reinforce_is"}
    output, grad = run(*batch, **settings)
    kept = [0.25, 1.0, 1.0, 2 / 3] if advantage > 0 else [0, 0, 1.0, 2 / 3]
    assert grad.tolist() == pytest.approx([-advantage * value for value in kept])
    assert output.sums["masked"] == (0 if advantage > 0 else 2)


# --- KL to the reference --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", -math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, -math.log(2)),
        ("k3", 2 - math.log(2) - 1, 1 - 2.0),
    ],
)
@pytest.mark.parametrize("importance", [False, True])
def test_the_kl_penalty_has_its_exact_value_and_gradient(estimator, value, slope, importance):
    # log pi_ref - log pi = log 2; pi/mu = 1/2. d(r k)/dx = r (k + dk/dx).
    settings = {"kl_coef": 0.1, "kl_estimator": estimator, "kl_importance": importance}
    output, grad = run(log(0.25), log(0.5), [0], reference=log(0.5), **settings)
    expected = (0.5 * value, 0.5 * (value + slope)) if importance else (value, slope)
    assert (output.total.item(), grad.item()) == pytest.approx((0.1 * expected[0], 0.1 * expected[1]))
    assert output.sums["kl_reference"] == pytest.approx(expected[0])


def test_masks_and_corrections_leave_the_kl_penalty_alone():
    output, grad = run(log(8.0), [0.0], [1], reference=log(4.0), correction="mis", kl_coef=1.0)
    assert output.sums["masked"] == 1
    assert grad.item() == pytest.approx(1 - 0.5)


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
