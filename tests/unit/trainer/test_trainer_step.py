"""What a step does with rows."""

import math

import pytest
import torch

from headway.algorithms.advantages import advantage_function
from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import HeadwayError, UserError
from headway.core.records import VersionSpan
from headway.trainer.schedule import learning_rate
from headway.trainer.sequences import build_sequences, count, fetch_rows
from headway.trainer.settings import TrainerSettings


def sequences_of(bench, rows, **settings):
    fetched = fetch_rows(rows, bench.root / "payloads", 48)
    return build_sequences(fetched, count(fetched), AlgorithmSettings(**settings), steps=0, lineage=None)


def weights(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer._policy.trainable().items()}


def test_a_rollout_in_three_segments_counts_once_in_the_baseline_and_all_its_tokens_carry_the_advantage(
    bench, make_rollout
):
    a, b = advantage_function(AlgorithmSettings(advantage="dr_grpo"))([1.0, 0.0])
    rows = [
        bench.row([make_rollout([1, 2], [3 + k, 4]) for k in range(3)], a),
        bench.row([make_rollout([1, 2], [9, 4, 5])], b),
    ]
    found = sequences_of(bench, rows)
    assert [list(s.advantages) for s in found] == [[0.5] * 2] * 3 + [[-0.5] * 3]
    assert [len(sequence.positions) for sequence in found] == [2, 2, 2, 3]
    assert count(fetch_rows(rows, bench.root / "payloads", 48)).num_sequences == 2


def test_every_trained_token_carries_its_advantage_and_the_rest_none(bench, make_sample):
    ids, mask = [1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 0, 1]
    (sequence,) = sequences_of(bench, [bench.row([make_sample(ids, mask)], 0.7)])
    assert (sequence.positions, sequence.advantages, sequence.weight) == ([1, 2, 5], [0.7] * 3, 1 / 3)


def test_masked_logprobs_are_never_read(bench, make_sample, make_model):
    ids, mask = [1, 2, 3, 4, 5], [0, 1, 0, 1, 0]
    results = []
    for junk in (0.0, math.nan, 1e9):
        logprobs = [junk, -1.0, junk, -2.0, junk]
        trainer = bench.trainer(make_model())
        result = trainer.step([bench.row([make_sample(ids, mask, logprobs)])])
        results.append((result, weights(trainer)))
    for result, after in results[1:]:
        assert result == results[0][0]
        assert all(torch.equal(after[name], results[0][1][name]) for name in after)


def test_stale_rows_are_clipped(bench, make_rollout):
    fresh = [bench.row([make_rollout([1, 2], [3, 4 + k])], 2.0 * k - 1) for k in range(2)]
    trainer = bench.trainer()
    logps = [logp.tolist() for (logp,) in trainer.forward(fresh)]
    rows = [
        bench.row([make_rollout([1, 2], [3, 4 + k], logprobs=[0.0, 0.0, *logps[k]])], 2.0 * k - 1)
        for k in range(2)
    ]
    assert trainer.step(rows).metrics["clip_fraction"] == 0
    shifted = [
        bench.row([make_rollout([1, 2], [3, 4 + k], logprobs=[0.0, 0.0, *(x - 1 for x in logps[k])])], 1.0)
        for k in range(2)
    ]
    assert trainer.step(shifted).metrics["clip_fraction"] == 1


def test_mismatch_is_taken_over_tokens_of_the_newest_version_only(bench, make_rollout):
    spans = [VersionSpan(0, 0, 2), VersionSpan(0, 1, 1)]
    row = bench.row([make_rollout([1, 2], [3, 4, 5], spans=spans)])
    trainer = bench.trainer()
    first = trainer.step([row]).metrics
    second = trainer.step([row]).metrics
    third = trainer.step([row]).metrics
    assert (first["num_fresh_tokens"], second["num_fresh_tokens"], third["num_fresh_tokens"]) == (2, 1, 0)
    assert second["mismatch_mean"] == second["mismatch_max"] > 0
    assert "mismatch_mean" not in third


def test_tokens_of_a_lost_branch_are_not_of_the_newest_version(bench, make_rollout):
    trainer = bench.trainer()
    trainer.publish(1, 0)
    metrics = trainer.step([bench.row([make_rollout([1, 2], [3], spans=[VersionSpan(0, 0, 1)])])]).metrics
    assert metrics["num_fresh_tokens"] == 0


def test_metrics_are_complete_and_finite(bench):
    trainer = bench.trainer(warmup_steps=4, micro_batch_tokens=30)
    result = trainer.step(bench.groups())
    names = (
        "loss grad_norm learning_rate clip_fraction mask_fraction ratio_mean ratio_max mismatch_kl entropy"
    )
    assert {*names.split(), "mismatch_kl_k1", "advantage_abs_mean", "mismatch_mean"} <= result.metrics.keys()
    assert {"mismatch_max", "num_micro_batches", "nonfinite"} <= result.metrics.keys()
    assert all(map(math.isfinite, result.metrics.values()))
    assert result.metrics["learning_rate"] == 5e-4 / 4
    assert 0 < result.metrics["entropy"] < math.log(48)
    assert result.metrics["num_micro_batches"] > 1
    assert trainer.steps == 1


def test_the_learning_rate_follows_its_schedule():
    linear = TrainerSettings(learning_rate=1.0, warmup_steps=2, schedule="linear", decay_steps=6)
    assert [learning_rate(linear, step) for step in range(1, 8)] == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert learning_rate(TrainerSettings(learning_rate=1.0), 1) == 1.0
    assert [problem.key for problem in TrainerSettings(schedule="linear").problems()] == ["decay_steps"]


def test_the_reference_stays_what_the_run_began_from(bench):
    rows = bench.groups(num_groups=1)
    trainer = bench.trainer(learning_rate=0.01)
    before = trainer.forward(rows)
    trainer.step(rows)
    reference, policy = trainer.forward(rows, "reference"), trainer.forward(rows)
    for (start,), (kept,), (moved,) in zip(before, reference, policy, strict=True):
        torch.testing.assert_close(kept, start)
        assert not torch.allclose(moved, start)
    with pytest.raises(HeadwayError, match="the reference policy is kept with LoRA only"):
        bench.trainer(full=True).forward(rows, "reference")


def test_forward_follows_rows_and_samples(bench, make_rollout, make_sample):
    rows = [
        bench.row([make_rollout([1, 2], [3, 4]), make_sample([1, 2, 3], [0, 0, 0])]),
        bench.row([make_rollout([1, 2], [5])]),
    ]
    assert [[len(logp) for logp in row] for row in bench.trainer().forward(rows)] == [[2, 0], [1]]


# --- faults ---------------------------------------------------------------------------------------


def poisoned(trainer):
    parameter = next(iter(trainer._policy.trainable().values()))
    parameter.data[0, 0] = math.nan
    return trainer


def test_a_step_that_is_not_finite_is_skipped_and_after_three_the_error_names_step_and_rollouts(bench):
    rows = bench.groups(num_groups=1)
    trainer = poisoned(bench.trainer())
    before = weights(trainer)
    for _ in range(3):
        metrics = trainer.step(rows).metrics
        assert metrics["nonfinite"] == 1
        assert all(map(math.isfinite, metrics.values()))
    assert all(
        torch.equal(
            before[name],
            now,
        )
        or before[name].isnan().any()
        for name, now in weights(trainer).items()
    )
    assert trainer.steps == 3
    with pytest.raises(UserError, match=r"4 steps in a row.*the last 4.*rollouts are r0, r1"):
        trainer.step(rows)


def test_a_finite_step_between_starts_the_count_again(bench):
    rows = bench.groups(num_groups=1)
    trainer = bench.trainer()
    parameter = next(iter(trainer._policy.trainable().values()))
    good = parameter.detach().clone()
    for _ in range(2):
        for _ in range(3):
            parameter.data[0, 0] = math.nan
            assert trainer.step(rows).metrics["nonfinite"] == 1
        parameter.data.copy_(good)
        assert trainer.step(rows).metrics["nonfinite"] == 0


@pytest.mark.parametrize(
    ("ids", "mask", "change", "words"),
    [
        ([], [], {}, "r0 must have tokens"),
        ([1, 2], [0, 0], {}, "at least one trained token"),
        ([1, 2], [1, 1], {}, "nothing precedes it"),
        ([1, 48], [0, 1], {}, "below the model's vocabulary of 48"),
        ([1, 2], [0, 1], {"temperature": 0.0}, "temperature above 0"),
        ([1, 2], [0, 1], {"logprobs": [0.0, -math.inf]}, "must be finite"),
        ([1, 2], [0, 1], {"spans": []}, "must cover its 1 trained tokens"),
    ],
)
def test_rows_that_cannot_be_trained_are_named(bench, make_sample, ids, mask, change, words):
    with pytest.raises(HeadwayError, match=words):
        bench.trainer().step([bench.row([make_sample(ids, mask, **change)])])


def test_no_rows_no_samples_and_an_infinite_advantage_are_refused(bench, make_rollout):
    trainer = bench.trainer()
    with pytest.raises(HeadwayError, match="at least one trained token"):
        trainer.step([])
    with pytest.raises(HeadwayError, match="at least one sample"):
        trainer.step([bench.row([])])
    with pytest.raises(HeadwayError, match="advantage of rollout r1 must be finite"):
        trainer.step([bench.row([make_rollout([1], [2])], math.nan)])
    assert trainer.steps == 0


def test_unknown_lora_targets_are_the_users_error(bench):
    with pytest.raises(UserError, match="lora_targets must be all-linear or some of") as caught:
        bench.trainer(lora_targets="q_proj,query")
    assert caught.value.value == "query"


def test_lora_targets_can_be_named(bench):
    trainer = bench.trainer(lora_targets="q_proj, v_proj")
    assert len(trainer._policy.trainable()) == 2 * 2 * 2


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("loss", ["grpo", "reinforce_is"])
def test_a_bandit_is_learnt(bench, make_model, make_rollout, full, loss):
    # One prompt, one sampled token, reward 1 for the lower half of the vocabulary.
    rng = torch.Generator().manual_seed(0)
    algorithm = AlgorithmSettings(loss=loss)
    advantages = advantage_function(algorithm)
    trainer = bench.trainer(make_model(), algorithm=algorithm, learning_rate=3e-3, full=full)
    every = [bench.row([make_rollout([1, 2, 3], [token])]) for token in range(48)]
    rates = []
    for step in range(30):
        logp = torch.cat([logp for (logp,) in trainer.forward(every)])
        rates.append(logp.exp()[:24].sum().item())
        drawn = torch.multinomial(logp.exp(), 16, replacement=True, generator=rng).tolist()
        found = advantages([float(token < 24) for token in drawn])
        rows = [
            bench.row(
                [
                    make_rollout(
                        [1, 2, 3],
                        [token],
                        logprobs=[0.0] * 3 + [logp[token].item()],
                        spans=[VersionSpan(0, step, 1)],
                    )
                ],
                advantage,
            )
            for token, advantage in zip(drawn, found, strict=True)
        ]
        assert trainer.step(rows).metrics["mismatch_max"] < 1e-5
    assert rates[-1] > rates[0] + 0.25
    assert rates[-1] > 0.9
