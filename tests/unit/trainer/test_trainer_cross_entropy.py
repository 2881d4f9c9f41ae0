"""The loss of supervised training against transformers' own, whatever the micro-batches."""

import pytest
import torch

from headway.algorithms.settings import AlgorithmSettings
from headway.core.records import VersionSpan

ROWS = [  # prompt, answer, further prompt, further answer
    ([1, 2, 3], [4, 5, 6], [7, 8], [9, 10]),
    ([1, 2, 3, 11], [12], [], []),
    ([20, 21], [22, 23, 24, 25, 26, 27], [28], [29, 30, 31]),
    ([1, 2, 3], [4, 5, 7], [8], [9]),
]
SUPERVISED = AlgorithmSettings(loss="cross_entropy")


@pytest.fixture
def rows(bench, make_sample):
    made = []
    for index, (prompt, answer, more, last) in enumerate(ROWS):
        ids = [*prompt, *answer, *more, *last]
        mask = [0] * len(prompt) + [1] * len(answer) + [0] * len(more) + [1] * len(last)
        sample = make_sample(ids, mask, [0.0] * len(ids), spans=[VersionSpan(0, -1, sum(mask))])
        made.append(bench.row([sample], group=f"g{index}"))
    return made


def transformers_loss(model, normaliser="token-mean", weights=(1, 1, 1, 1)):
    """Loss and gradient of a padded batch, labels -100 where masked."""
    longest = max(sum(map(len, row)) for row in ROWS)
    ids, labels = torch.zeros(len(ROWS), longest, dtype=torch.long), torch.full((len(ROWS), longest), -100)
    for at, (prompt, answer, more, last) in enumerate(ROWS):
        row = torch.tensor([*prompt, *answer, *more, *last])
        ids[at, : len(row)] = row
        for start, part in ((len(prompt), answer), (len(prompt) + len(answer) + len(more), last)):
            labels[at, start : start + len(part)] = torch.tensor(part, dtype=torch.long)
    if normaliser == "token-mean" and set(weights) == {1}:
        loss = model(input_ids=ids, labels=labels).loss
    else:
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        each = torch.nn.functional.cross_entropy(
            logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="none"
        )
        each, num = each.view(len(ROWS), -1), (labels != -100).sum(1)
        scale = 1 / num.sum() if normaliser == "token-mean" else 1 / (len(ROWS) * num)[:, None]
        loss = (each * scale * torch.tensor(weights)[:, None]).sum()
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


def gradient_of(trainer, rows):
    wide = trainer.batch_wide(rows)
    trainer.zero_grad()
    loss = trainer.forward_backward(rows, wide).loss
    return loss, {name: grad.clone() for name, grad in trainer.gradients().items()}


def relative(found, expected):
    assert found.keys() == expected.keys()
    gap = sum((found[name] - expected[name]).square().sum() for name in expected).sqrt()
    return (gap / sum(grad.square().sum() for grad in expected.values()).sqrt()).item()


@pytest.mark.parametrize("normaliser", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 0.25, 2, 0.5)])
def test_the_gradient_is_that_of_transformers_loss(bench, rows, make_model, normaliser, weights):
    expected_loss, expected = transformers_loss(make_model(), normaliser, weights)
    algorithm = AlgorithmSettings(loss="cross_entropy", normaliser=normaliser)
    trainer = bench.trainer(algorithm=algorithm, full=True)
    weighted = [row._replace(weight=weight) for row, weight in zip(rows, weights, strict=True)]
    loss, found = gradient_of(trainer, weighted)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert relative(found, expected) < 1e-5


@pytest.mark.parametrize("full", [True, False])
def test_the_gradient_does_not_depend_on_micro_batches_packing_or_order(bench, rows, make_model, full):
    def trainer(tokens):
        model = make_model(torch.float64)
        return bench.trainer(model, algorithm=SUPERVISED, full=full, micro_batch_tokens=tokens)

    loss, expected = gradient_of(trainer(4096), rows)
    for tokens, order in ((1, rows), (20, rows), (4096, rows[::-1])):
        other_loss, found = gradient_of(trainer(tokens), order)
        assert other_loss == pytest.approx(loss, rel=1e-12)
        assert relative(found, expected) < 1e-12
    parts = trainer(16)
    wide = parts.batch_wide(rows)
    parts.zero_grad()
    total = sum(parts.forward_backward(part, wide).loss for part in (rows[:1], rows[1:]))
    assert total == pytest.approx(loss, rel=1e-12)
    assert relative(parts.gradients(), expected) < 1e-12


def test_conversations_with_one_prompt_share_it(bench, rows, make_model):
    _, apart = gradient_of(bench.trainer(make_model(torch.float64), algorithm=SUPERVISED, full=True), rows)
    together = [row._replace(group="one") for row in rows]
    trainer = bench.trainer(make_model(torch.float64), algorithm=SUPERVISED, full=True)
    assert relative(gradient_of(trainer, together)[1], apart) < 1e-12
