"""A step that begins before its batch is complete: the gradient and the numbers of the whole batch."""

import math
from array import array

import pytest
import torch

from headway.algorithms.corrections import CORRECTIONS
from headway.algorithms.losses import LOSSES
from headway.algorithms.normaliser import Denominators, token_weight
from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import HeadwayError, UserError
from headway.core.payload import read_payload
from headway.core.records import VersionSpan

F64, F32 = torch.float64, torch.float32
WHOLE_BATCH = ("m2po",)


def mixed(bench, make_rollout):
    """Ragged groups: rows that weigh less, rows whose older versions are masked, one that is masked whole."""
    spans = [VersionSpan(0, 0, 2), VersionSpan(0, 1, 1)]
    masked = {"masked": ((0, 0),)}
    return [
        *bench.groups(num_groups=2, size=3),
        bench.row([make_rollout([1, 2], [3, 4, 5], spans=spans)], 0.7, "g2", **masked),
        bench.row([make_rollout([1, 2], [6, 7, 8, 9])], -0.2, "g2", weight=0.64),
        bench.row([make_rollout([1, 2], [3, 4], spans=spans[:1])], 1.0, "g2", **masked),
        bench.row([make_rollout([1, 2, 3], [4]), make_rollout([1, 5], [6, 7])], 0.4, "g3", weight=0.8),
    ]


def near_policy(bench, make_model, rows):
    """The same rows, sampled by a policy somewhat off the trainer's own: no ratio is out of every bound."""
    noise = torch.Generator().manual_seed(3)
    model = bench.trainer(make_model(F64))
    near = []
    for row in rows:
        samples = read_payload(bench.root / "payloads", row.payload).samples
        bare = row._replace(masked=())
        for sample, logp in zip(samples, model.forward([bare])[0], strict=True):
            shift = 0.2 * torch.randn(len(logp), generator=noise, dtype=F64)
            sample.logprobs[-len(logp) :] = array("f", (logp + shift).tolist())
        made = bench.row(samples, row.advantage, row.group)
        near.append(row._replace(rollout=made.rollout, payload=made.payload))
    return near


def parts_of(rows, names):
    """The rows of the groups of each part, parts in the order given."""
    return [[row for row in rows if row.group in part] for part in names]


SPLITS = (
    [["g0"], ["g1"], ["g2"], ["g3"]],
    [["g3", "g1"], ["g2", "g0"]],
    [["g0", "g1", "g2", "g3"], []],
    [["g2"], ["g0", "g1", "g3"]],
)


def gap(found, expected):
    difference = math.sqrt(sum((found[name] - expected[name]).square().sum().item() for name in expected))
    return difference / math.sqrt(sum(value.square().sum().item() for value in expected.values()))


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer._policy.trainable().items()}


def gradient_of_step(trainer, rows, num_gathered=0):
    """The gradient that a step applies, before clipping, and the step's result."""
    caught = {}
    apply = trainer._update.apply

    def look(*arguments, **named):
        caught.update({name: grad.clone() for name, grad in trainer._own_gradients().items()})
        return apply(*arguments, **named)

    trainer._update.apply = look
    result = trainer.step(rows, num_gathered=num_gathered)
    trainer._update.apply = apply
    return caught, result


def same(bench, make_model, rows, split, *, dtype, bound, **settings):
    algorithm = AlgorithmSettings(constant_tokens=10, **settings)
    whole, begun = (
        bench.trainer(make_model(dtype), algorithm=algorithm, micro_batch_tokens=24) for _ in range(2)
    )
    for trainer in (whole, begun):
        trainer.step(rows)  # LoRA's B is zero at first, and with it A's gradient
    *parts, rest = parts_of(rows, split)
    for part in parts:
        begun.gather(part)
    ordered = [row for part in [*parts, rest] for row in part]
    expected, of_whole = gradient_of_step(whole, ordered)
    found, of_begun = gradient_of_step(begun, ordered, len(ordered) - len(rest))
    assert gap(found, expected) < bound
    assert of_begun.num_tokens == of_whole.num_tokens
    assert of_begun.num_trained_tokens == of_whole.num_trained_tokens
    differs = {"num_micro_batches": of_begun.metrics["num_micro_batches"]}
    close = 1e-9 if dtype == F64 else 1e-4
    assert of_begun.metrics == pytest.approx(of_whole.metrics | differs, rel=close, abs=close)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("normaliser", ["token-mean", "seq-mean-token-mean", "constant", "prompt-mean"])
@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-12), (F32, 1e-5)])
def test_a_gathered_gradient_is_that_of_the_whole_batch(
    bench, make_model, make_rollout, normaliser, split, dtype, bound
):
    rows = mixed(bench, make_rollout)
    same(bench, make_model, rows, split, dtype=dtype, bound=bound, normaliser=normaliser)


ALGORITHMS = [
    *({"loss": name} for name in LOSSES.names if name not in WHOLE_BATCH),
    *({"correction": name} for name in CORRECTIONS.names),
    {"correction": "mis", "correction_level": "geometric", "sequence_mask_delta": 0.2},
    {"kl_coef": 0.1, "kl_importance": True},
]


@pytest.mark.parametrize("settings", ALGORITHMS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_a_gathered_gradient_is_that_of_the_whole_batch_with_every_algorithm(
    bench, make_model, make_rollout, settings
):
    rows = near_policy(bench, make_model, mixed(bench, make_rollout))
    same(bench, make_model, rows, SPLITS[1], dtype=F64, bound=1e-12, **settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"loss": "m2po"}, "algorithm.loss = m2po"),
        ({"advantage": "reinforce_pp"}, "algorithm.advantage = reinforce_pp"),
    ],
)
def test_what_needs_the_whole_batch_cannot_begin_before_it_is_there(bench, settings, named):
    trainer = bench.trainer(algorithm=AlgorithmSettings(**settings))
    with pytest.raises(UserError, match=f"before its batch is complete with {named}"):
        trainer.gather(bench.groups())


def test_a_step_is_clipped_and_scheduled_as_a_whole(bench, make_model, make_rollout):
    rows = mixed(bench, make_rollout)
    settings = {"max_grad_norm": 1e-3, "learning_rate": 0.01, "warmup_steps": 4}
    whole, begun = (bench.trainer(make_model(F64), **settings) for _ in range(2))
    expected = whole.step(rows, 0.5).metrics
    for group in ("g0", "g1"):
        begun.gather([row for row in rows if row.group == group])
    found = begun.step(rows, 0.5, num_gathered=6).metrics
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-12)
    assert found["learning_rate"] == expected["learning_rate"] == 0.01 / 4 / 2
    assert gap(weights(begun), weights(whole)) < 1e-12


def test_a_loaded_checkpoint_knows_nothing_of_the_step_that_was_begun(bench, make_model):
    rows = bench.groups()
    trainer = bench.trainer(make_model())
    trainer.step(rows)
    path = trainer.save(1)
    expected = trainer.step(rows)
    trainer.gather(rows[:4])
    trainer.load(path)
    assert trainer.step(rows) == expected


def test_a_batch_without_a_trained_token_is_refused_when_it_is_complete(bench, make_rollout):
    masked = bench.row([make_rollout([1, 2], [3])], masked=((0, 0),))
    trainer = bench.trainer()
    assert trainer.gather([masked]) == 0
    with pytest.raises(HeadwayError, match="at least one trained token"):
        trainer.step([masked], num_gathered=1)


def test_the_weight_of_a_part_lacks_the_divisor_of_the_batch():
    part, rest = Denominators(6, 2, 1, {"a": 6}, True), Denominators(4, 1, 1, {"b": 4}, True)
    whole = Denominators(10, 3, 2, {"a": 6, "b": 4})
    for normaliser, divisor in (
        ("token-mean", 10), ("seq-mean-token-mean", 3), ("constant", 3), ("prompt-mean", 2)
    ):  # fmt: skip
        more = {"group": "a", "rollout_tokens": 4, "constant_tokens": 5}
        unit = token_weight(normaliser, part, **more)
        assert unit / divisor == pytest.approx(token_weight(normaliser, whole, **more), rel=1e-15)
    assert part + rest == Denominators(10, 3, 2, {"a": 6, "b": 4}, True)
    with pytest.raises(HeadwayError, match="one part of a batch, whole"):
        part + part
