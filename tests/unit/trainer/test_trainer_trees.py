"""Token trees: what is shared is computed once, at any depth, and changes neither log-probs nor gradients."""

import random
from array import array
from itertools import pairwise

import pytest
import torch
from tests.unit.family_models import FAMILIES, VARIANTS
from tests.unit.family_models import make_model as make_family
from tests.unit.trainer.conftest import sample
from tests.unit.trainer.test_trainer_gradient import alone, gradient, relative_gap
from torch.nn.functional import scaled_dot_product_attention

from headway.core.payload import read_payload
from headway.core.records import ROUTED_EXPERTS, Stream
from headway.trainer.attention import dense_mask, tree_attention
from headway.trainer.packing import num_positions, pack
from headway.trainer.sequences import TrainSequence
from headway.trainer.trie import MIN_SPLIT_TOKENS, common_length

F64, F32 = torch.float64, torch.float32


def draw_tokens(draw, num=9, root=6):
    """Token lists that part ways at random depths; some are another's beginning, some are equal."""
    found = [[draw.randrange(1, 6) for _ in range(root)]]
    while len(found) < num:
        base = draw.choice(found)
        keep = draw.randrange(2, len(base) + 1)
        found.append(base[:keep] + [draw.randrange(1, 6) for _ in range(draw.randrange(0, 12))])
    return found


def sequence(ids, positions, group="g", routes=None, temperature=1.0):
    num = len(positions)
    return TrainSequence(
        "r",
        group,
        array("i", ids),
        positions,
        [-1.0] * num,
        [True] * num,
        temperature,
        [1.0] * num,
        1.0,
        None,
        routes,
    )


def draw_sequences(draw):
    """Sequences that train some of what they share."""
    made = []
    for ids in draw_tokens(draw):
        first = draw.randrange(1, len(ids))
        made.append(sequence(ids, sorted(draw.sample(range(1, len(ids)), first))))
    return made


def paths(row, sequences):
    """Check that every member is in the row, and return the positions of each of its tokens."""
    allowed = dense_mask(row.blocks, len(row.token_ids), torch.device("cpu"))
    found = {}
    at = 0
    for member, length in zip(row.members, row.lengths, strict=True):
        copies = row.copies[at : at + length]
        at += length
        last = row.predict_at[copies[-1]]  # predicts the last trained token
        seen = allowed[last].nonzero().squeeze(1).tolist()
        item = sequences[member]
        assert row.token_ids[seen].tolist() == item.token_ids[: num_positions(item)].tolist()
        assert row.position_ids[seen].tolist() == list(range(len(seen)))
        assert row.targets[copies].tolist() == [item.token_ids[p] for p in item.positions]
        assert row.predict_at[copies].tolist() == [seen[p - 1] for p in item.positions]
        found[member] = seen
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_token_sees_those_before_it_on_its_branch_and_no_other(seed):
    sequences = draw_sequences(random.Random(seed))
    (row,) = pack(sequences, 10_000)
    allowed = dense_mask(row.blocks, len(row.token_ids), torch.device("cpu"))
    expected = torch.zeros_like(allowed)
    for seen in paths(row, sequences).values():
        for index, at in enumerate(seen):
            expected[at, seen[: index + 1]] = True
    assert torch.equal(allowed, expected)
    covered = sum(block.q_end - block.q_start for block in row.blocks if block.causal)
    assert covered == len(row.token_ids)
    computed = sum(
        (n := b.q_end - b.q_start) * (n + 1) // 2
        if b.causal
        else (b.q_end - b.q_start) * (b.k_end - b.k_start)
        for b in row.blocks
    )
    assert computed == int(expected.sum())  # no pair twice


@pytest.mark.parametrize("seed", range(10))
def test_every_prefix_is_in_the_row_once_but_for_short_splits(seed):
    sequences = draw_sequences(random.Random(seed))
    (row,) = pack(sequences, 10_000)
    needed = {tuple(s.token_ids[: n + 1]) for s in sequences for n in range(num_positions(s))}
    assert len(needed) <= len(row.token_ids) <= len(needed) + (MIN_SPLIT_TOKENS - 1) * (len(sequences) - 1)
    assert len(row.token_ids) < sum(map(num_positions, sequences))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("budget", [1, 17, 40])
def test_rows_keep_to_the_budget_and_do_not_depend_on_the_order(seed, budget):
    sequences = draw_sequences(random.Random(seed))
    rows = pack(sequences, budget)
    assert sorted(member for row in rows for member in row.members) == list(range(len(sequences)))
    for row in rows:
        paths(row, sequences)
        assert len(row.token_ids) <= budget or len(row.members) == 1
    turned = pack(sequences[::-1], budget)
    assert [row.token_ids.tolist() for row in turned] == [row.token_ids.tolist() for row in rows]


def test_turns_that_samples_share_are_nested():
    prompt, turn, other = [1] * 8, [2] * 7, [3] * 6
    ids = [
        prompt + turn + [4, 5],
        prompt + turn + other + [6, 7],
        prompt + turn + other + [8],
        [*prompt, 9, 9],
    ]
    sequences = [sequence(each, [len(each) - 1]) for each in ids]
    (row,) = pack(sequences, 100)
    assert len(row.token_ids) == 8 + 7 + 1 + 6 + 1 + 1
    paths(row, sequences)


def test_a_token_that_several_train_is_predicted_once():
    ids = [1, 2, 3, 4, 5, 6]
    same = [sequence(ids, [3, 4, 5]), sequence(ids, [3, 4, 5]), sequence(ids, [3, 4, 5], temperature=0.5)]
    (row,) = pack(same, 100)
    assert (len(row.token_ids), len(row.targets), row.copies.tolist()) == (5, 6, [0, 1, 2, 0, 1, 2, 3, 4, 5])


def draw_rows(bench, draw, num_groups=2, routes=None):
    """Rows with samples that share trained tokens within a rollout and among rollouts."""
    rows = []
    for group in range(num_groups):
        for index, ids in enumerate(draw_tokens(draw, num=8)):
            mask = [0] + [int(draw.random() < 0.6) for _ in ids[1:]]
            mask[-1] = 1
            logprobs = [-0.5 - draw.random() * flag for flag in mask]
            made = sample(ids, mask, logprobs, temperature=draw.choice([1.0, 1.0, 0.7]))
            if routes is not None and index != 3:
                made.streams = {ROUTED_EXPERTS: routes(ids)}
            rows.append(bench.row([made], advantage=draw.uniform(-1, 1), group=f"g{group}"))
    return rows


@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-12), (F32, 1e-5)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_of_a_nested_tree_is_that_of_its_sequences_alone(
    bench, make_model, dtype, bound, full, seed
):
    rows = draw_rows(bench, random.Random(seed))
    trainer = bench.trainer(make_model(dtype), full=full, micro_batch_tokens=10_000)
    if not full:
        trainer.step(rows)  # B is zero at first, and with it A's gradient
    found, expected = gradient(trainer, rows), gradient(trainer, alone(rows))
    assert relative_gap(found, expected) < bound
    halves = gradient(trainer, rows, [rows[::2], rows[1::2]])
    assert relative_gap(halves, expected) < bound
    assert trainer.step(rows).num_tokens < 0.7 * trainer.step(alone(rows)).num_tokens


@pytest.mark.parametrize("seed", range(3))
def test_tokens_that_went_to_other_experts_are_not_shared(bench, seed):
    draw = random.Random(seed)

    def routes(ids):
        own = [draw.choice([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 4]]) for _ in ids]
        return Stream(
            "token",
            "int16",
            (len(ids), 2, 2),
            array("h", [expert for token in own for expert in token]).tobytes(),
        )

    rows = draw_rows(bench, draw, routes=routes)
    trainer = bench.trainer(make_family("qwen3 moe of some layers"), full=True, micro_batch_tokens=10_000)
    gap = relative_gap(gradient(trainer, rows), gradient(trainer, alone(rows)))
    assert gap < 1e-5


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logprobs_in_a_tree_are_those_of_transformers_own_forward(bench, variant):
    draw = random.Random(4)
    rows = draw_rows(bench, draw, num_groups=1)
    trainer = bench.trainer(make_family(variant), full=True, micro_batch_tokens=10_000)
    plain = make_family(variant)
    for row, (logp,) in zip(rows, trainer.forward(rows), strict=True):
        (made,) = read_payload(bench.root / "payloads", row.payload).samples
        ids = torch.tensor(list(made.token_ids))
        with torch.no_grad():
            every = (plain(input_ids=ids[None]).logits[0, :-1] / made.temperature).log_softmax(-1)
        own = every.gather(1, ids[1:, None]).squeeze(1)[torch.tensor(list(made.trainable))[1:] > 0]
        torch.testing.assert_close(logp, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", FAMILIES)
def test_checkpointing_a_tree_changes_nothing(bench, variant):
    rows = draw_rows(bench, random.Random(5), num_groups=1)
    plain, saving = (
        bench.trainer(make_family(variant), full=True, gradient_checkpointing=flag) for flag in (False, True)
    )
    assert relative_gap(gradient(saving, rows), gradient(plain, rows)) < 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-13), (F32, 2e-6), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_attention_by_blocks_is_attention_with_a_mask(dtype, bound, heads, kv_heads):
    (row,) = pack(draw_sequences(random.Random(3)), 10_000)
    num = len(row.token_ids)
    generator = torch.Generator().manual_seed(0)
    q, k, v, up = (
        torch.randn(1, n, num, 8, generator=generator, dtype=F64).to(dtype).requires_grad_()
        for n in (heads, kv_heads, kv_heads, heads)
    )
    out, _ = tree_attention(None, q, k, v, None, scaling=0.4, blocks=row.blocks)
    wide = [each.repeat_interleave(heads // kv_heads, 1) for each in (k, v)]
    mask = dense_mask(row.blocks, num, q.device)
    expected = scaled_dot_product_attention(q, *wide, mask, scale=0.4).transpose(1, 2)
    grads = [torch.autograd.grad(each, (q, k, v), up.transpose(1, 2)) for each in (out, expected)]
    for one, other in ((out, expected), *zip(*grads, strict=True)):
        assert ((one - other).norm() / other.norm()).item() < bound


def test_common_length_counts_whole_items():
    assert common_length(b"aabbcc", b"aabbcd", 2) == 2
    assert common_length(b"aabb", b"aabbcd", 2) == 2
    assert common_length(b"", b"aa", 2) == 0
    words = [bytes(draw.choices(b"ab", k=12)) for draw in map(random.Random, range(40))]
    for one, other in pairwise(words):
        plain = next((i for i in range(4) if one[3 * i : 3 * i + 3] != other[3 * i : 3 * i + 3]), 4)
        assert common_length(one, other, 3) == plain
