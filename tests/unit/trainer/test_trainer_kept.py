"""Tokens of truncated sampling are trained on the policy restricted to the ids that were kept."""

import math
import random
from dataclasses import replace

import pytest
import torch
from tests.unit.trainer.conftest import VOCAB, rollout_sample

from headway.core.commands import Row
from headway.core.errors import HeadwayError
from headway.core.kept import Kept
from headway.core.records import KEPT_COUNTS, VersionSpan
from headway.trainer.logprobs import CHUNK_TOKENS, token_logprobs
from headway.trainer.sequences import without_versions
from headway.trainer.support import kept_ids

F64 = torch.float64


def with_kept(sample, rows):
    kept = Kept()
    for ids in rows:
        kept.append(ids)
    return replace(sample, streams=kept.streams())


def random_kept(targets, vocab, most, rng, free=0.0):
    """Sorted ids for each target, itself among them; none for a share of them."""
    kept = Kept()
    for target in targets:
        if rng.random() < free:
            kept.append(())
        else:
            kept.append(sorted({target, *(rng.randrange(vocab) for _ in range(rng.randrange(most)))}))
    return kept


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(("vocab", "free"), [(500, 0.0), (500, 0.3), (12, 0.0)], ids=["few", "some", "most"])
def test_log_probs_entropies_and_gradients_equal_log_softmax_of_masked_logits(frozen, vocab, free):
    torch.manual_seed(0)
    num = 2 * CHUNK_TOKENS + 17
    hidden = torch.randn(num, 8, dtype=F64, requires_grad=True)
    weight = torch.randn(vocab, 8, dtype=F64, requires_grad=not frozen)
    targets, temperatures = torch.randint(0, vocab, (num,)), torch.rand(num, dtype=F64) + 0.5
    kept = random_kept(targets.tolist(), vocab, 9, random.Random(0), free)
    upstream = torch.randn(num, dtype=F64)
    inputs = [hidden] if frozen else [hidden, weight]

    cut = num // 2  # two sequences, one after the other
    parts = [kept.only([at < cut for at in range(num)]), kept.only([at >= cut for at in range(num)])]
    found, entropy = token_logprobs(hidden, weight, targets, temperatures, kept_ids(parts, [cut, num - cut]))
    mask = torch.full((num, vocab), -math.inf, dtype=F64)
    for row, ids in enumerate(kept.rows()):
        mask[row, list(ids) or slice(None)] = 0.0
    log_all = (hidden @ weight.T / temperatures[:, None] + mask).log_softmax(-1)
    expected = log_all.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, torch.special.entr(log_all.exp()).sum(-1), rtol=1e-12, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_truncated_and_whole_rollouts_pack_together(bench, make_model):
    prompt, answer = [1, 2, 3], [4, 5, 6, 7]
    whole = rollout_sample(prompt, answer)
    cut = with_kept(whole, [[4, 9], [5], [1, 6, 7], []])
    trainer = bench.trainer(make_model(F64), full=True)
    alone = [trainer.forward([bench.row([sample])])[0][0] for sample in (whole, cut)]
    together = [row[0] for row in trainer.forward([bench.row([whole]), bench.row([cut])])]
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    logp = torch.stack([together[0], together[1]])
    assert (logp[1][:3] > logp[0][:3]).all()
    assert logp[1][1] == 0.0  # a token that was the only choice
    torch.testing.assert_close(logp[0][3], logp[1][3])  # one that was not truncated


def test_keeping_the_whole_vocabulary_changes_nothing(bench, make_model):
    whole = rollout_sample([1, 2, 3], [4, 5, 6])
    every = with_kept(whole, [list(range(VOCAB))] * 3)
    gradients = []
    for folder, sample in (("a", whole), ("b", every)):
        trainer = bench.trainer(make_model(F64), folder=folder, full=True)
        rows = [bench.row([sample], advantage=0.7)]
        trainer.forward_backward(rows, trainer.batch_wide(rows))
        gradients.append(trainer.gradients())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-12, atol=1e-12)


def test_masked_versions_take_their_kept_ids_along():
    spans = [VersionSpan(0, 0, 2), VersionSpan(0, 1, 1)]
    sample = with_kept(rollout_sample([1], [2, 3, 4], spans=spans), [[2, 5], [3], [4, 6]])
    left = without_versions(sample, [(0, 0)])
    assert left.num_trainable == 1
    assert [list(ids) for ids in Kept.of(left.streams).rows()] == [[4, 6]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[4], [5]], "a count of kept ids for each of its 3 trained tokens"),
        ([[4], [5], [7]], "must be among the ids kept for it"),
        ([[4], [5], [6, VOCAB]], f"below the model's vocabulary of {VOCAB}"),
        ([[4], [5], [6, 6]], "must rise, each there once"),
    ],
)
def test_kept_ids_that_do_not_fit_the_tokens_name_the_rollout(bench, rows, words):
    sample = with_kept(rollout_sample([1, 2, 3], [4, 5, 6]), rows)
    with pytest.raises(HeadwayError, match=words) as caught:
        bench.trainer().step([bench.row([sample])])
    assert "r0" in caught.value.rule


def test_one_stream_without_the_other_is_refused(bench):
    sample = with_kept(rollout_sample([1, 2, 3], [4, 5, 6]), [[4], [5], [6]])
    del sample.streams[KEPT_COUNTS]
    row: Row = bench.row([sample])
    with pytest.raises(HeadwayError, match="must come together") as caught:
        bench.trainer().step([row])
    assert row.rollout in caught.value.rule
