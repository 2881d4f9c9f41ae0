"""Draws are from the right distribution, and their log-probs are its."""

import math

import pytest
import torch

from headway.generator.sampling import Draw, draw_key, draw_tokens, uniform


def drawn(logits, plan):
    return draw_tokens(logits.clone(), plan)[:2]


def draws(n, *, temperature=1.0, top_p=1.0, top_k=0, key=1):
    return [Draw(temperature, top_p, top_k, uniform(key, i)) for i in range(n)]


def test_temperature_log_prob_of_the_second_token():
    # Behaviour check 7: logits [0, ln 4] at T = 0.5 are odds of 1 to 16.
    logits = torch.tensor([[0.0, math.log(4)]]).expand(64, 2)
    tokens, logprobs = drawn(logits, draws(64, temperature=0.5))
    seen = dict(zip(tokens, logprobs, strict=True))
    assert seen[1] == pytest.approx(-0.0606, abs=5e-5)
    assert seen.get(0, -2.8332) == pytest.approx(-2.8332, abs=5e-5)


def test_log_probs_equal_log_softmax():
    logits = torch.randn(16, 1000, generator=torch.Generator().manual_seed(0)) * 3
    for temperature in (1.0, 0.7, 1.3):
        tokens, logprobs = drawn(logits, draws(16, temperature=temperature))
        wanted = torch.log_softmax(logits / temperature, -1)[torch.arange(16), tokens]
        torch.testing.assert_close(torch.tensor(logprobs), wanted, atol=2e-6, rtol=0)


def test_greedy_takes_the_likeliest_and_reports_it_at_temperature_one():
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = drawn(logits, draws(8, temperature=0.0))
    assert tokens == logits.argmax(-1).tolist()
    wanted = torch.log_softmax(logits, -1).amax(-1)
    torch.testing.assert_close(torch.tensor(logprobs), wanted, atol=1e-6, rtol=0)


def test_draws_invert_the_cumulative_distribution():
    logits = torch.randn(700, generator=torch.Generator().manual_seed(2)).mul(2).expand(4000, -1)
    plan = draws(4000)
    tokens, _ = drawn(logits, plan)
    upto = torch.softmax(logits[0].double(), -1).cumsum(0)
    wanted = torch.searchsorted(
        upto, torch.tensor([d.uniform for d in plan], dtype=torch.float64), right=True
    )
    differing = (wanted != torch.tensor(tokens)).sum()
    assert differing <= 4  # a uniform within f32 rounding of a token's edge


def test_frequencies_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.2, 0.2, 0.1])
    tokens, _ = drawn(probabilities.log().expand(20000, 4), draws(20000))
    counts = torch.bincount(torch.tensor(tokens), minlength=4) / 20000
    assert (counts - probabilities).abs().max() < 0.012  # 3.4 standard deviations


def test_impossible_tokens_are_never_drawn():
    logits = torch.full((500, 600), float("-inf"))
    logits[:, [3, 255, 256, 599]] = 0.0
    tokens, logprobs = drawn(logits, draws(500))
    assert set(tokens) == {3, 255, 256, 599}
    assert logprobs == pytest.approx([-math.log(4)] * 500)


def test_extreme_uniforms_stay_inside():
    logits = torch.zeros(2, 257)
    logits[:, 256] = float("-inf")
    tokens, _ = drawn(logits, [Draw(1.0, 1.0, 0, 1e-15), Draw(1.0, 1.0, 0, 1 - 2e-15)])
    assert tokens == [0, 255]


def test_top_k_and_top_p_keep_and_renormalise():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(400, 4)
    tokens, logprobs = drawn(logits, draws(400, top_k=2))
    assert set(tokens) == {0, 1}
    assert logprobs[tokens.index(0)] == pytest.approx(math.log(4 / 7), abs=1e-6)
    tokens, logprobs = drawn(logits, draws(400, top_p=0.65))
    assert set(tokens) == {0, 1}
    assert logprobs[tokens.index(1)] == pytest.approx(math.log(3 / 7), abs=1e-6)
    tokens, _ = drawn(logits[:50], draws(50, top_p=0.01))
    assert set(tokens) == {0}


def test_a_row_of_nan_is_seen_in_its_log_prob_only():
    logits = torch.zeros(2, 10)
    logits[0, 3] = float("nan")
    _, logprobs = drawn(logits, draws(2))
    assert math.isnan(logprobs[0])
    assert logprobs[1] == pytest.approx(-math.log(10))


def test_uniforms_are_fixed_by_seed_and_position():
    assert draw_key(1) == draw_key(1)
    assert len({draw_key(seed) for seed in range(1000)}) == 1000
    values = [uniform(draw_key(3), position) for position in range(4000)]
    assert len(set(values)) == 4000
    assert 0 < min(values) < 0.01
    assert 0.99 < max(values) < 1
    assert sum(values) / 4000 == pytest.approx(0.5, abs=0.02)


def test_the_rest_of_the_batch_changes_no_draw():
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(0))
    plan = draws(6)
    together, _ = drawn(logits, plan)
    alone = [drawn(logits[i : i + 1], plan[i : i + 1])[0][0] for i in range(6)]
    assert together == alone


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-40, 1e-30, 1e-6])
def test_the_smallest_temperatures_take_the_likeliest_and_are_sure_of_it(temperature):
    logits = torch.tensor([[9999.0, -1e4, 9998.0, 1e4, float("-inf")]]).repeat(8, 1)
    assert drawn(logits, draws(8, temperature=temperature)) == ([3] * 8, [0.0] * 8)
    assert drawn(logits, draws(8, temperature=temperature, top_p=0.9)) == ([3] * 8, [0.0] * 8)


def test_the_largest_temperature_makes_all_tokens_alike():
    tokens, logprobs = drawn(torch.tensor([[1.0, -3.0]]).repeat(64, 1), draws(64, temperature=1e6))
    assert set(tokens) == {0, 1}
    assert logprobs == pytest.approx([-math.log(2)] * 64, abs=1e-5)
