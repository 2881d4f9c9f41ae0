"""The gradient does not depend on how a batch is laid out, and equals a plain computation."""

import math
from array import array

import pytest
import torch

from headway.algorithms.corrections import CORRECTIONS
from headway.algorithms.losses import LOSSES
from headway.algorithms.settings import AlgorithmSettings
from headway.core.payload import read_payload
from headway.trainer.logprobs import CHUNK_TOKENS, token_logprobs
from headway.trainer.packing import pack
from headway.trainer.sequences import build_sequences, count, fetch_rows

F64, F32 = torch.float64, torch.float32


def gradient(trainer, rows, parts=None):
    """The gradient of a whole batch, gathered part by part."""
    wide = trainer.batch_wide(rows)
    trainer.zero_grad()
    for part in [rows] if parts is None else parts:
        trainer.forward_backward(part, wide)
    return {name: grad.clone() for name, grad in trainer.gradients().items()}


def relative_gap(found, expected):
    """Norm of the difference over the norm, all parameters together."""
    assert found.keys() == expected.keys()
    difference = math.sqrt(sum((found[name] - expected[name]).square().sum().item() for name in expected))
    return difference / math.sqrt(sum(grad.square().sum().item() for grad in expected.values()))


def alone(rows):
    """The same rows, each in a group of its own, so that no prefix is shared."""
    return [row._replace(group=f"{row.group}-{row.rollout}") for row in rows]


def plain_gradient(model, rows, root, temperature):
    """GRPO, token-mean, over one padded batch of a plain transformers forward pass."""
    samples = [read_payload(root / "payloads", row.payload).samples[0] for row in rows]
    width = max(len(sample.token_ids) for sample in samples)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    present = torch.zeros(len(rows), width, dtype=torch.long)
    trained = torch.zeros(len(rows), width, dtype=torch.bool)
    mu = torch.zeros(len(rows), width, dtype=model.dtype)
    for index, sample in enumerate(samples):
        num = len(sample.token_ids)
        ids[index, :num] = torch.tensor(list(sample.token_ids))
        present[index, :num] = 1
        trained[index, :num] = torch.tensor(list(sample.trainable)) > 0
        mu[index, :num] = torch.tensor(list(sample.logprobs))
    logits = model(input_ids=ids, attention_mask=present).logits[:, :-1] / temperature
    logp = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    ratio = (logp - mu[:, 1:]).exp()
    advantage = torch.tensor([row.advantage for row in rows], dtype=model.dtype)[:, None]
    objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    objective = torch.where((advantage < 0) & (ratio > 3), 3 * advantage, objective)
    loss = -objective[trained[:, 1:]].mean()
    model.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-12), (F32, 1e-5)])
def test_gradient_equals_a_padded_transformers_forward(bench, make_model, dtype, bound, full):
    rows = bench.groups(temperature=0.7)
    trainer = bench.trainer(model := make_model(dtype), full=full)
    trainer.step(rows)  # LoRA's B is zero at first, and with it A's gradient
    expected_loss, expected = plain_gradient(model, rows, bench.root, 0.7)
    found = gradient(trainer, rows)
    assert relative_gap(found, expected) < bound
    assert trainer.forward_backward(rows, trainer.batch_wide(rows)).loss == pytest.approx(
        expected_loss, rel=bound
    )


@pytest.mark.parametrize("normaliser", ["token-mean", "seq-mean-token-mean", "constant", "prompt-mean"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-12), (F32, 1e-5)])
def test_gradient_does_not_depend_on_micro_batches_packing_or_order(
    bench, make_model, dtype, bound, full, normaliser
):
    rows = bench.groups()
    algorithm = AlgorithmSettings(normaliser=normaliser, constant_tokens=10)

    def trainer(max_tokens):
        made = bench.trainer(make_model(dtype), algorithm=algorithm, micro_batch_tokens=max_tokens, full=full)
        if (
            not full
        ):  # B is zero at first; Adam's first step makes much of rounding where a gradient is near 0
            made.step(rows)
        return made

    whole = trainer(10_000)
    expected = gradient(whole, rows)
    for max_tokens in (1, 13, 30):
        assert relative_gap(gradient(trainer(max_tokens), rows), expected) < bound
    assert relative_gap(gradient(whole, rows[::-1]), expected) < bound
    assert relative_gap(gradient(whole, rows, [rows[:1], rows[1:7], rows[7:]]), expected) < bound
    if normaliser != "prompt-mean":
        assert relative_gap(gradient(whole, alone(rows)), expected) < bound


@pytest.mark.parametrize("full", [False, True])
def test_dr_grpo_weighs_a_token_alike_whatever_the_lengths_of_the_others(
    bench, make_model, make_rollout, full
):
    """A rollout without advantage changes nothing; with token-mean its length does."""
    short = bench.row([make_rollout([1, 2, 3], [4, 5, 6])], advantage=0.5, group="a")
    quiet = [bench.row([make_rollout([1, 2], [7] * num)], advantage=0.0, group="b") for num in (1, 12)]

    def of(normaliser, other, constant_tokens=10):
        algorithm = AlgorithmSettings(
            advantage="dr_grpo", normaliser=normaliser, constant_tokens=constant_tokens
        )
        return gradient(bench.trainer(make_model(F64), algorithm=algorithm, full=full), [short, other])

    expected = of("constant", quiet[0])
    assert relative_gap(of("constant", quiet[1]), expected) < 1e-12
    halved = {name: grad / 2 for name, grad in expected.items()}
    assert relative_gap(of("constant", quiet[1], 20), halved) < 1e-12
    assert relative_gap(of("token-mean", quiet[1]), of("token-mean", quiet[0])) > 0.5


def near_policy(bench, make_model):
    """Rows that a policy somewhat off the trainer's own sampled, with weights of their own."""
    rows, noise = [], torch.Generator().manual_seed(3)
    drawn = bench.groups()
    for index, (row, (logp,)) in enumerate(
        zip(drawn, bench.trainer(make_model(F64)).forward(drawn), strict=True)
    ):
        (sample,) = read_payload(bench.root / "payloads", row.payload).samples
        shift = 0.4 * torch.randn(len(logp), generator=noise, dtype=F64)
        sample.logprobs[-len(logp) :] = array("f", (logp + shift).tolist())
        rows.append(bench.row([sample], row.advantage, row.group, weight=1 - 0.1 * (index % 3)))
    return rows


ALGORITHMS = [
    *({"loss": name} for name in LOSSES.names),
    {"loss": "m2po", "m2po_threshold": 0.5},
    *({"correction": name} for name in CORRECTIONS.names),
    {"correction": "tis", "correction_level": "sequence", "loss": "gspo"},
    {"correction": "mis", "correction_level": "geometric", "sequence_mask_delta": 0.2},
    {"kl_coef": 0.1, "kl_importance": True},
    {"advantage": "magistral"},
    {"advantage": "reinforce_pp", "discount": 0.9},
    {"advantage": "reinforce_pp_baseline", "loss": "m2po", "normaliser": "prompt-mean"},
]


@pytest.mark.parametrize("settings", ALGORITHMS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_the_gradient_of_no_algorithm_depends_on_micro_batches_packing_or_order(bench, make_model, settings):
    rows = near_policy(bench, make_model)
    algorithm = AlgorithmSettings(**settings)

    def trainer(max_tokens):
        made = bench.trainer(make_model(F64), algorithm=algorithm, micro_batch_tokens=max_tokens)
        made.step(rows)
        return made

    whole = trainer(10_000)
    expected = gradient(whole, rows)
    assert any(grad.any() for grad in expected.values())
    for max_tokens in (1, 13):
        assert relative_gap(gradient(trainer(max_tokens), rows), expected) < 1e-12
    assert relative_gap(gradient(whole, rows[::-1]), expected) < 1e-12
    assert relative_gap(gradient(whole, rows, [rows[:1], rows[1:7], rows[7:]]), expected) < 1e-12


def test_gradient_checkpointing_changes_nothing(bench, make_model):
    rows = bench.groups()
    plain, saving = (bench.trainer(make_model(F64), gradient_checkpointing=flag) for flag in (False, True))
    plain.step(rows)
    saving.step(rows)
    assert relative_gap(gradient(saving, rows), gradient(plain, rows)) < 1e-12


def test_a_shared_prompt_goes_through_the_model_once(bench, make_rollout):
    prompt = list(range(1, 11))
    rows = [bench.row([make_rollout(prompt, [20 + k, 21, 22])], k - 1.5) for k in range(4)]
    trainer = bench.trainer()
    assert trainer.step(rows).num_tokens == 10 + 4 * 2  # the last token of each predicts nothing
    assert trainer.step(alone(rows)).num_tokens == 4 * 12


def test_a_trained_token_that_rollouts_share_counts_once_for_each(bench, make_model, make_rollout):
    same = [bench.row([make_rollout([1, 2, 3], [4, 5])], 1.0) for _ in range(2)]
    trainer = bench.trainer(make_model(F64))
    result = trainer.step(same)
    assert (result.num_trained_tokens, result.num_tokens) == (4, 4)
    one = gradient(trainer, same[:1])
    assert relative_gap(gradient(trainer, same), one) < 1e-12  # the mean of two equal halves


def test_a_group_above_the_budget_is_split_and_a_long_sequence_stands_alone(bench):
    rows = bench.groups(num_groups=1, size=4)
    fetched = fetch_rows(rows, bench.root / "payloads", 48)
    sequences = build_sequences(fetched, count(fetched), AlgorithmSettings(), steps=0, lineage=None)
    packed = pack(sequences, 12)
    assert sorted(member for row in packed for member in row.members) == [0, 1, 2, 3]
    assert all(len(row.token_ids) <= 12 or len(row.members) == 1 for row in packed)
    assert len(packed) > 1


def test_the_mask_lets_a_branch_see_its_prefix_and_itself_only(bench, make_rollout):
    rows = [bench.row([make_rollout([1, 2], [3 + k, 5, 6])], group=group) for group in "ab" for k in range(2)]
    fetched = fetch_rows(rows, bench.root / "payloads", 48)
    sequences = build_sequences(fetched, count(fetched), AlgorithmSettings(), steps=0, lineage=None)
    (row,) = pack(sequences, 100)
    seen = (row.attention_mask(F32)[0, 0] == 0).int().tolist()
    tree = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]
    assert seen == [line + [0] * 6 for line in tree] + [[0] * 6 + line for line in tree]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 2, 3] * 2
    assert row.predict_at.tolist()[:6] == [1, 2, 3, 1, 4, 5]


# --- log-probs ------------------------------------------------------------------------------------


def test_temperature_divides_the_logits():
    hidden = torch.tensor([[1.0]], dtype=F64)
    weight = torch.tensor([[0.0], [math.log(4)]], dtype=F64)
    logp, entropy = token_logprobs(hidden, weight, torch.tensor([1]), torch.tensor([0.5]))
    assert logp.item() == pytest.approx(-0.0606, abs=5e-5)
    p = 16 / 17
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))


@pytest.mark.parametrize("frozen", [True, False])
def test_chunked_logprobs_and_gradients_equal_plain_ones(frozen):
    torch.manual_seed(0)
    num = 2 * CHUNK_TOKENS + 17
    hidden = torch.randn(num, 8, dtype=F64, requires_grad=True)
    weight = torch.randn(20, 8, dtype=F64, requires_grad=not frozen)
    targets, temperatures = torch.randint(0, 20, (num,)), torch.rand(num, dtype=F64) + 0.5
    upstream = torch.randn(num, dtype=F64)
    inputs = [hidden] if frozen else [hidden, weight]

    found, entropy = token_logprobs(hidden, weight, targets, temperatures)
    log_all = (hidden @ weight.T / temperatures[:, None]).log_softmax(-1)
    expected = log_all.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(entropy, -(log_all.exp() * log_all).sum(-1), rtol=1e-12, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_bfloat16_models_have_float32_logprobs():
    hidden, weight = torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(20, 8, dtype=torch.bfloat16)
    logp, entropy = token_logprobs(hidden, weight, torch.tensor([1, 2, 3]), torch.ones(3))
    assert logp.dtype == entropy.dtype == F32


def test_equal_weights_give_ratio_1_at_any_temperature(bench, make_model, make_rollout):
    samples = [make_rollout([1, 2, 3], [4, 5, 6 + k], temperature=0.5) for k in range(2)]
    trainer = bench.trainer(make_model(F64))
    (first,), (second,) = trainer.forward([bench.row([sample]) for sample in samples])
    rows = [
        bench.row(
            [make_rollout([1, 2, 3], [4, 5, 6 + k], logprobs=[0.0] * 3 + logp.tolist(), temperature=0.5)]
        )
        for k, logp in enumerate((first, second))
    ]
    metrics = trainer.step(rows).metrics
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_fraction"] == 0
    assert metrics["mismatch_max"] < 1e-6  # payloads hold float32
