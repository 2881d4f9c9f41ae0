"""Truncated sampling keeps what transformers' warpers keep, at any shape of the distribution."""

import itertools
import math

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from headway.generator.sampling import Draw, draw_tokens, uniform
from headway.generator.truncation import kept_tokens

CUTS = [
    cut
    for cut in itertools.product((0, 1, 5, 300, 10**6), (1.0, 0.95, 0.5, 0.01, 1e-9), (0.0, 0.02, 0.4, 1.0))
    if cut != (0, 1.0, 0.0)
]


def draw(top_k=0, top_p=1.0, min_p=0.0, *, at=0.5, temperature=1.0, max_kept=0, model=False):
    return Draw(temperature, top_p, top_k, at, min_p, max_kept, model)


def kept(logits, cuts):
    shifted = logits - logits.amax(-1, keepdim=True)
    return kept_tokens(shifted, cuts)


def transformers_keep(logits, top_k, top_p, min_p):
    scores = logits.double()
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return scores > -math.inf


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("vocab", [7, 5000])
def test_kept_ids_are_those_of_transformers_warpers_one_after_the_other(vocab, scale):
    logits = torch.randn(len(CUTS), vocab, generator=torch.Generator().manual_seed(0)) * scale
    together = kept(logits, [draw(*cut) for cut in CUTS])
    for row, cut in enumerate(CUTS):
        wanted = transformers_keep(logits[row : row + 1], *cut)
        assert torch.equal(together[row : row + 1], wanted), cut
        assert torch.equal(kept(logits[row : row + 1], [draw(*cut)]), wanted), (
            cut
        )  # nor does the batch matter


def test_a_flat_distribution_is_searched_as_far_as_it_must_be():
    logits = torch.randn(3, 20000, generator=torch.Generator().manual_seed(1)) * 0.1
    for top_p in (0.005, 0.1, 0.9, 0.999):  # within 256, 4096 and the whole vocabulary
        wanted = transformers_keep(logits, 0, top_p, 0.0)
        assert torch.equal(kept(logits, [draw(0, top_p)] * 3), wanted)


def test_equally_likely_tokens_at_the_bound_all_stay():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    for cut in (draw(2), draw(0, 0.6), draw(0, 1.0, math.exp(-1.0))):
        assert kept(logits, [cut]).tolist() == [[True, True, True, True, False]]


def test_at_most_so_many_ids_are_kept_the_likeliest_and_of_equal_ones_the_first():
    logits = torch.tensor([[0.0, 3.0, 1.0, 1.0, 1.0, 2.0]] * 2)
    keep = kept(logits, [draw(0, 0.999, max_kept=3), draw(0, 0.999)])
    assert keep[0].nonzero().flatten().tolist() == [1, 2, 5]
    assert keep[1].all()


def test_impossible_tokens_are_not_kept():
    logits = torch.tensor([[0.0, -math.inf, -1.0, -math.inf]])
    for cut in (draw(3), draw(0, 0.9999), draw(0, 1.0, 1e-9)):
        assert kept(logits, [cut]).tolist() == [[True, False, True, False]]


def test_log_probs_are_renormalised_over_the_ids_that_are_told():
    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(3)) * 2
    plan = [
        draw(*CUTS[row], at=uniform(9, row), temperature=0.7, max_kept=64 if row % 2 else 3000)
        for row in range(40)
    ]
    drawn = draw_tokens(logits.clone(), plan)
    for row, (token, logprob) in enumerate(zip(drawn.token_ids, drawn.logprobs, strict=True)):
        ids = list(drawn.kept[row])
        assert ids == sorted(set(ids))
        assert token in ids
        assert len(ids) <= plan[row].max_kept
        over = (logits[row, ids].double() / 0.7).log_softmax(-1)
        assert logprob == pytest.approx(over[ids.index(token)].item(), abs=2e-6)


def test_rows_that_are_not_truncated_have_no_ids_and_are_drawn_as_ever():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(4))
    plan = [
        draw(5, at=0.3, max_kept=8),
        draw(at=0.3, max_kept=8),
        draw(5, temperature=0.0, max_kept=8),
        draw(5),
    ]
    drawn = draw_tokens(logits.clone(), plan)
    assert list(drawn.kept) == [0]
    alone = draw_tokens(logits[1:2].clone(), [draw(at=0.3)])
    assert (drawn.token_ids[1], drawn.logprobs[1]) == (alone.token_ids[0], alone.logprobs[0])
    assert drawn.token_ids[2] == logits[2].argmax()


def test_model_log_probs_are_of_temperature_one_and_untruncated():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(5))
    plan = [
        draw(3, model=True),
        draw(temperature=0.5, model=True),
        draw(model=True),
        draw(0, 0.5, temperature=0.5),
    ]
    drawn = draw_tokens(logits.clone(), plan)
    wanted = logits.log_softmax(-1)
    assert drawn.model_logprobs == {
        row: pytest.approx(wanted[row, drawn.token_ids[row]].item(), abs=1e-6) for row in range(3)
    }
    assert drawn.model_logprobs[2] == drawn.logprobs[2]


def test_a_row_of_nan_keeps_nothing_and_spoils_no_other():
    logits = torch.zeros(2, 10)
    logits[0, 3] = math.nan
    drawn = draw_tokens(logits, [draw(4, 0.9, 0.1, max_kept=5)] * 2)
    assert math.isnan(drawn.logprobs[0])
    assert len(drawn.kept[1]) == 5
    assert drawn.logprobs[1] == pytest.approx(-math.log(5))
