"""What any advantage, loss and correction does: call these with your own function, in a test of yours.

    from algorithm_contract import check_loss

    def test_my_loss():
        check_loss(my_loss)

Each takes the function (or the `Advantage`, the `PolicyLoss`) and raises AssertionError where it breaks the
contract that the trainer relies on. `settings` is the [algorithm] section that the function is called with.
"""

from __future__ import annotations

import math

import torch

from headway.algorithms.advantages import BatchTokens, as_advantage
from headway.algorithms.corrections.level import ratio_of_level
from headway.algorithms.losses import BatchLogps, as_policy_loss
from headway.algorithms.losses.apply import LossInputs, apply_loss
from headway.algorithms.settings import AlgorithmSettings

F64 = torch.float64
LENGTHS = (3, 1, 6, 4, 2)  # trained tokens of the sequences that the checks are made with


def check_advantage(advantage, settings=None):
    """Rewards in, one finite number a rollout out; the order of rollouts and rows does not matter.

    No group is empty: one without a scored rollout is dropped before it has advantages.
    """
    advantage, settings = as_advantage(advantage), settings or AlgorithmSettings()
    groups = ([0.3], [0.0, 0.0], [1.0] * 7, [0.0, 1.0], [0.1, 0.7, 0.2, 1.0], [1e-9, 1e9])
    for rewards in groups:
        if advantage.turns is None:
            _check_numbers(advantage.group, rewards, settings)
        else:
            turns = [[reward] * (1 + index % 3) for index, reward in enumerate(rewards)]
            found = advantage.turns([tuple(values) for values in turns], settings)
            assert [len(values) for values in found] == [len(values) for values in turns]
            assert all(math.isfinite(value) for values in found for value in values)
    if advantage.batch is not None:
        _check_batch_half(advantage.batch, settings)


def _check_numbers(function, rewards, settings):
    given = list(rewards)
    found = function(given, settings)
    assert given == rewards, "the rewards must not be changed"
    assert len(found) == len(rewards), "one advantage a rollout"
    assert all(map(math.isfinite, found)), "advantages must be finite"
    backwards = function(rewards[::-1], settings)[::-1]
    gaps = [abs(a - b) for a, b in zip(found, backwards, strict=True)]
    assert max(gaps, default=0) <= 1e-9 * max(map(abs, found), default=0), "the order must not matter"


def _check_batch_half(half, settings):
    order = [3, 0, 4, 2, 1]
    values = [-1.0, 0.5, 2.0, 0.25, -0.75]

    def batch(indices):
        lengths = torch.tensor([LENGTHS[index] for index in indices])
        rollouts = torch.arange(len(indices)).repeat_interleave(lengths)
        from_end = torch.tensor([n for length in lengths for n in reversed(range(length))])
        return torch.tensor([values[i] for i in indices], dtype=F64)[rollouts], rollouts, from_end, lengths

    def answer(indices):
        advantages, rollouts, from_end, lengths = batch(indices)
        found = half(BatchTokens(advantages, rollouts, from_end), settings)
        assert found.shape == advantages.shape, "one advantage a token"
        assert found.isfinite().all(), "advantages must be finite"
        return dict(zip(indices, found.split(lengths.tolist()), strict=True))

    straight, shuffled = answer([0, 1, 2, 3, 4]), answer(order)
    for index, part in straight.items():
        torch.testing.assert_close(part, shuffled[index], rtol=1e-12, atol=1e-12)
    answer([0])  # one rollout


def check_loss(loss, settings=None, correction=None):
    """Shapes; tight masks; no averaging; no dependence on parts and order; finite throughout."""
    settings = settings or AlgorithmSettings()
    run = _Run(as_policy_loss(loss), settings, correction)
    _check_shapes(run)
    _check_masks(run)
    _check_parts_and_order(run)
    _check_copies(run)
    _check_extremes(run)


class _Run:
    """A loss over batches of whole sequences."""

    def __init__(self, loss, settings, correction):
        self.loss, self.settings, self.correction = loss, settings, correction

    def batch(self, seed=0, spread=0.5):
        """Sequences of random tokens, most of them off policy."""
        rng = torch.Generator().manual_seed(seed)

        def draw(num):
            return torch.randn(num, generator=rng, dtype=F64)

        return [
            (
                -2 + 0.5 * draw(num),
                spread * draw(num),
                draw(1).expand(num),
                torch.rand(1, generator=rng, dtype=F64).expand(num) + 0.1,
            )
            for num in LENGTHS
        ]

    def keep(self, batch):
        """What the batch half says of whole sequences, each with log-probs, gaps, advantages, weights."""
        if self.loss.batch is None:
            return [None] * len(batch)
        on = [weights > 0 for *_, weights in batch]
        logp, gap, advantages = (
            torch.cat([sequence[part][where] for sequence, where in zip(batch, on, strict=True)])
            for part in range(3)
        )
        mu = logp - gap
        found = self.loss.batch(
            BatchLogps(logp, mu, mu if self.correction is None else logp, advantages), self.settings
        )
        assert found.shape == logp.shape, "the batch half answers for each token"
        assert found.dtype == torch.bool, "the batch half answers with booleans"
        flags = iter(found.tolist())
        return [torch.tensor([next(flags) if flag else True for flag in where.tolist()]) for where in on]

    def __call__(self, batch, keep=None):
        """Return the output, and the gradient of each sequence."""
        keep = self.keep(batch) if keep is None else keep
        logps = [logp.clone().requires_grad_() for logp, *_ in batch]
        lengths = torch.tensor([len(logp) for logp in logps])
        mu, advantages, weights = (
            torch.cat(parts) for parts in zip(*[(logp - gap, a, w) for logp, gap, a, w in batch], strict=True)
        )
        inputs = LossInputs(
            torch.cat(logps),
            mu,
            advantages,
            weights,
            torch.arange(len(batch)).repeat_interleave(lengths),
            None if keep[0] is None else torch.cat(keep),
        )
        output = apply_loss(self.loss, inputs, self.settings, self.correction)
        output.total.backward()
        return output, [logp.grad for logp in logps]


def _check_shapes(run):
    output, _ = run(run.batch())
    assert output.per_token.shape == (sum(LENGTHS),), "one loss a token"
    assert output.num_tokens == sum(LENGTHS)
    assert all(0 <= output.sums[name] <= sum(LENGTHS) for name in ("clipped", "masked"))


def _check_masks(run):
    """NaN or 1e9 under a zero weight leaves loss and gradient bit-identical."""
    clean = run.batch()
    clean = [
        (logp, gap, advantages, weights * (index != 2))
        for index, (logp, gap, advantages, weights) in enumerate(clean)
    ]
    expected, expected_grads = run(clean)
    for junk in (math.nan, 1e9, -math.inf):
        dirty = list(clean)
        dirty[2] = (*[torch.full_like(values, junk) for values in clean[2][:3]], clean[2][3])
        found, grads = run(dirty)
        assert torch.equal(found.total, expected.total), f"{junk} under a mask changed the loss"
        assert found.sums == expected.sums
        assert all(torch.equal(a, b) for a, b in zip(grads, expected_grads, strict=True)), junk
    off = [(logp, gap, advantages, weights * 0) for logp, gap, advantages, weights in clean]
    output, grads = run(off)
    assert output.total.item() == 0, "a part without trained tokens has loss 0"
    assert not any(grad.any() for grad in grads)


def _check_parts_and_order(run):
    for seed in range(3):
        batch = run.batch(seed)
        keep = run.keep(batch)
        _, expected = run(batch)
        parts = ((0,), (1, 2), (3, 4))
        split = [grad for part in parts for grad in run([batch[i] for i in part], [keep[i] for i in part])[1]]
        turned = run(batch[::-1])[1][::-1]
        for whole, apart, backwards in zip(expected, split, turned, strict=True):
            torch.testing.assert_close(apart, whole, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(backwards, whole, rtol=1e-12, atol=1e-12)


def _check_copies(run):
    """A loss that averages by itself would halve when its batch is doubled."""
    batch = run.batch()
    (one, _), (two, _) = run(batch), run(batch + batch)
    torch.testing.assert_close(two.per_token, one.per_token.repeat(2), rtol=1e-12, atol=1e-12)


def _check_extremes(run):
    for size in (1e-300, 5.0, 30.0, 1e4, 1e9):
        for sign in (-1, 1):
            batch = [
                (-torch.full_like(logp, size if sign < 0 else 1e-3), torch.full_like(gap, sign * size), a, w)
                for logp, gap, a, w in run.batch()
            ]
            output, grads = run(batch)
            assert output.total.isfinite(), f"a log-ratio of {sign * size:g} made the loss {output.total}"
            assert all(grad.isfinite().all() for grad in grads), f"log-ratio {sign * size:g}: the gradient"


def check_correction(correction, settings=None):
    """Weights are finite, at least 0, one a token, and each token's own; ratio 1 has weight 1."""
    settings = settings or AlgorithmSettings()
    logp = torch.tensor([0.0, -0.3, 1e9, -1e9, 0.7], dtype=F64)
    ratio = ratio_of_level(logp, torch.zeros(5, dtype=F64), torch.zeros(5, dtype=torch.long), settings)
    weights = correction(ratio, settings)
    assert weights.shape == ratio.shape, "one weight a token"
    assert weights.isfinite().all(), "weights must be finite"
    assert (weights >= 0).all(), "a negative weight would turn the gradient round"
    assert torch.equal(correction(ratio.flip(0), settings).flip(0), weights), "the order must not matter"
    one = correction(torch.ones(2, dtype=F64), settings)
    assert one.tolist() == [1.0, 1.0], "where the policies agree there is nothing to correct"
    assert len(correction(ratio[:0], settings)) == 0
