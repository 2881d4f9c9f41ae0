"""Replayed routing: the recorded experts, weighted by the trainer's own router."""

import numpy
import pytest
import torch
from tests.unit.family_models import VOCAB, make_model
from tests.unit.trainer.conftest import rollout_sample
from torch.nn.functional import linear, silu

from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import HeadwayError, UserError
from headway.core.records import ROUTED_EXPERTS, Stream
from headway.models.shape import model_shape
from headway.trainer.packing import pack
from headway.trainer.routing import RoutingReplay
from headway.trainer.sequences import build_sequences, count, fetch_rows

MOE = "qwen3 moe of some layers"  # 2 of 3, weights of the chosen experts as they are
LAYERS, EXPERTS, PER_TOKEN = 2, 6, 2


def experts(num_tokens, seed=0):
    """Random distinct experts, [tokens, layers, 2]."""
    rng = numpy.random.default_rng(seed)
    chosen = [rng.permutation(EXPERTS)[:PER_TOKEN] for _ in range(num_tokens * LAYERS)]
    return numpy.array(chosen, "int16").reshape(num_tokens, LAYERS, PER_TOKEN)


def recorded(values):
    return {ROUTED_EXPERTS: Stream("token", "int16", values.shape, values.tobytes())}


def routed(prompt, answer, values):
    made = rollout_sample(prompt, answer)
    made.streams = recorded(values)
    return made


@torch.no_grad()
def layer_by_hand(block, x, chosen, *, normalised):
    """A mixture's output with these experts, one token after the other."""
    rows = []
    for token, ids in zip(x, chosen.tolist(), strict=True):
        weights = (block.gate.weight @ token).softmax(-1)[ids]
        if normalised:
            weights = weights / weights.sum()
        total = torch.zeros_like(token)
        for expert, weight in zip(ids, weights, strict=True):
            gate, up = linear(token, block.experts.gate_up_proj[expert]).chunk(2)
            total += weight * linear(silu(gate) * up, block.experts.down_proj[expert])
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("variant", [MOE, "qwen3 moe"])
def test_given_experts_are_taken_with_the_routers_own_weights(variant):
    model = make_model(variant)
    shape = model_shape(model.config.to_dict()).experts
    replay = RoutingReplay(model, shape)
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(3))
    block = model.model.layers[2].mlp
    with torch.no_grad():
        own = block.gate(x)[2]
        free = block(x[None])[0]
        given = torch.from_numpy(experts(5)).long()[:, :1].expand(-1, len(shape.layers), -1).clone()
        given[1] = -1
        replay.routes = given
        found = block(x[None])[0]
    chosen = torch.where(given[:, 0] >= 0, given[:, 0], own)
    wanted = layer_by_hand(block, x, chosen, normalised=shape.normalised)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[1], free[1])
    assert not torch.allclose(found[0], free[0], atol=1e-3)


def packed_row(bench, samples):
    fetched = fetch_rows([bench.row([each]) for each in samples], bench.root / "payloads", VOCAB)
    (row,) = pack(build_sequences(fetched, count(fetched), AlgorithmSettings(), steps=0, lineage=0), 512)
    return row


def test_only_a_prompt_that_went_the_same_way_is_shared(bench):
    prompt, same = [5, 6, 7, 8], experts(7)
    other = same.copy()
    other[2, 1] = (other[2, 1] + 1) % EXPERTS
    pair = [routed(prompt, [1, 2, 3], same), routed(prompt, [4, 5, 6], same)]
    # The prompt and both answers of the pair, and of the third what it does not share.
    for third, num_shared in ((same, 4), (other, 2)):
        row = packed_row(bench, [*pair, routed(prompt, [17, 8, 9], third)])
        assert len(row.token_ids) == 4 + 3 * 2 + (4 - num_shared)
        at = row.token_ids.tolist().index(17)
        branch = row.attention_mask(torch.float32)[0, 0, at + 1] == 0
        assert row.routes[branch].tolist() == third[:6].tolist()


def test_a_prompt_is_not_shared_with_a_rollout_that_has_no_record(bench):
    prompt, values = [5, 6, 7, 8], experts(7)
    row = packed_row(bench, [routed(prompt, [1, 2, 3], values), rollout_sample(prompt, [7, 8, 9])])
    assert len(row.token_ids) == 6 + 6
    assert row.routes.tolist() == [*values[:6].tolist(), *numpy.full((6, LAYERS, PER_TOKEN), -1).tolist()]
    assert packed_row(bench, [rollout_sample(prompt, [7, 8, 9])] * 2).routes is None


def rows_with_experts(bench):
    rows = []
    for index in range(6):
        prompt, answer = [5, 6, 7, 8 + index // 3], [9 + index, 3, 1 + index][: 1 + index % 3]
        values = experts(len(prompt) + len(answer), seed=index)
        values[:3] = experts(3, seed=9)
        values[-1] = -1
        rows.append(
            bench.row([routed(prompt, answer, values)], advantage=index - 2.5, group=f"g{index // 3}")
        )
    return rows


def gradient(trainer, rows, parts=None):
    wide = trainer.batch_wide(rows)
    trainer.zero_grad()
    for part in parts or [rows]:
        trainer.forward_backward(part, wide)
    return {name: grad.clone() for name, grad in trainer.gradients().items()}


def test_the_gradient_does_not_depend_on_packing(bench):
    rows = rows_with_experts(bench)
    whole = gradient(bench.trainer(make_model(MOE), full=True), rows)
    assert whole["model.layers.2.mlp.gate.weight"].abs().max() > 0
    alone = [row._replace(group=f"{row.group}-{row.rollout}") for row in rows]
    others = {
        "alone": gradient(bench.trainer(make_model(MOE), full=True, micro_batch_tokens=1), rows),
        "in parts": gradient(bench.trainer(make_model(MOE), full=True), rows, [rows[3:], rows[:3]]),
        "checkpointed": gradient(
            bench.trainer(make_model(MOE), full=True, gradient_checkpointing=True), rows
        ),
    }
    size = sum(grad.square().sum().item() for grad in whole.values())
    for name, found in others.items():
        gap = sum((found[key] - whole[key]).square().sum().item() for key in whole)
        assert gap < 1e-10 * size, name
    forward = bench.trainer(make_model(MOE)).forward
    for a, b in zip(forward(rows), forward(alone), strict=True):
        torch.testing.assert_close(a[0], b[0], atol=1e-5, rtol=1e-5)


def test_it_can_be_switched_off(bench):
    rows = rows_with_experts(bench)
    plain = [
        bench.row([rollout_sample([5, 6, 7, 8], [9])]),
        bench.row([rollout_sample([5, 6, 7, 8], [10, 3])]),
    ]
    off = bench.trainer(make_model(MOE), replay_routing=False)
    on = bench.trainer(make_model(MOE))
    for found, wanted in zip(off.forward(rows[:2]), off.forward(plain), strict=True):
        torch.testing.assert_close(found[0], wanted[0])
    assert not torch.allclose(on.forward(rows[:1])[0][0], off.forward(rows[:1])[0][0], atol=1e-3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (experts(4), r"int16 of shape \(5, 2, 2\)"),
        (experts(5)[:, :1], r"int16 of shape \(5, 2, 2\)"),
        (experts(5).astype("int32"), "int16"),
        (experts(5) + numpy.int16(4), "below 6"),
    ],
)
def test_experts_that_do_not_fit_are_refused_by_name(bench, values, words):
    sample = rollout_sample([5, 6, 7, 8], [9])
    sample.streams = {ROUTED_EXPERTS: Stream("token", str(values.dtype), values.shape, values.tobytes())}
    with pytest.raises(HeadwayError, match=f"rollout r0 .*{words}"):
        bench.trainer(make_model(MOE)).forward([bench.row([sample])])


@pytest.mark.parametrize("variant", [MOE, "qwen3 moe"])
def test_lora_is_on_attention_alone(bench, variant):
    trainer = bench.trainer(make_model(variant), lora_rank=4)
    names = trainer._policy.trainable()
    assert {name.split(".")[4] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    facts = model_shape(make_model(variant).config.to_dict()).facts()
    assert sum(parameter.numel() for parameter in names.values()) == facts.lora_params(4)
    for target in ("gate", "gate_proj"):
        with pytest.raises(UserError, match="attention alone can have LoRA") as caught:
            bench.trainer(make_model(variant), lora_targets=f"q_proj,{target}")
        assert caught.value.value == target
