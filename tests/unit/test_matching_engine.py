"""The roofline of a replica, its memory, and the trainer's step, by hand."""

from dataclasses import replace

import pytest

from headway.matching.engine import MeasuredEngine, RooflineEngine, cut_replica
from headway.matching.fit import kv_room, offload_room, trainer_bytes
from headway.matching.hardware import find_accelerator
from headway.matching.model_facts import known_models
from headway.matching.spec import GeneratorPoolSettings, TimingSettings, TrainerPoolSettings
from headway.matching.trainer_model import RooflineTrainer

H200 = find_accelerator("H200 SXM", "")
BARE = GeneratorPoolSettings(
    count=8, bandwidth_efficiency=1.0, compute_efficiency=1.0, iteration_s=0.0, layer_s=0.0, max_running=8
)


def engine(name="Qwen3-8B", **changes):
    return RooflineEngine(known_models()[name], H200, replace(BARE, **changes))


def test_decoding_reads_the_weights_and_the_resident_keys_and_values():
    model = known_models()["Qwen3-8B"]
    weights, kv = 2 * (model.params - model.vocab * model.hidden), 147456
    assert engine().decode_s(4, 4000) == pytest.approx((weights + 4000 * kv) / 4.8e12)
    assert engine(kv="fp8").decode_s(4, 4000) == pytest.approx((weights + 4000 * kv / 2) / 4.8e12)
    halves = engine(bandwidth_efficiency=0.5).decode_s(4, 4000)
    assert halves == pytest.approx(2 * engine().decode_s(4, 4000))


def test_a_large_batch_is_bound_by_compute():
    model = known_models()["Qwen3-8B"]
    flops = 4096 * (2 * model.linear_params + 4 * 147456 * 10)
    assert engine().decode_s(4096, 40960) == pytest.approx(flops / 989e12)


def test_a_batch_touches_its_part_of_the_experts():
    moe = engine("Qwen3-30B-A3B")
    assert moe.experts_touched(1) == pytest.approx(8 / 128)
    assert moe.experts_touched(2) == pytest.approx(1 - (120 / 128) ** 2)
    model = known_models()["Qwen3-30B-A3B"]
    read = 2 * model.dense_params + 2 * model.routed_params * 8 / 128 + 98304
    assert moe.decode_s(1, 1) == pytest.approx(read / 4.8e12)


def test_speculation_verifies_more_tokens_and_gives_more():
    plain, fast = engine("Qwen3-30B-A3B"), engine("Qwen3-30B-A3B", speculative_tokens=2.5)
    assert (plain.tokens_per_iteration, fast.tokens_per_iteration) == (1.0, 2.5)
    assert fast.decode_s(8, 8000) > plain.decode_s(8, 8000)


def test_tenants_slow_one_another_down():
    alone = engine("Qwen3-8B")
    shared = RooflineEngine(known_models()["Qwen3-8B"], H200, BARE, tenants=3)
    assert shared.decode_s(2, 2000) == pytest.approx(alone.decode_s(6, 6000))
    assert shared.prefill_s(1000, 0) == pytest.approx(3 * alone.prefill_s(1000, 0))


def test_prefill_on_machines_of_its_own_has_lines():
    split = engine("GLM-5", count=128, prefill_count=64, replicas=2, expert_parallel=32, weights="fp8")
    assert (split.separate_prefill, split.prefill_lines, split.cut.gpus) == (True, 32, 32)
    assert engine().prefill_lines == 1
    assert not engine().separate_prefill


def test_latent_attention_is_copied_by_tensor_parallelism():
    model = known_models()["DeepSeek-V3"]
    assert cut_replica(replace(BARE, tensor_parallel=8), model).kv_shards == 1
    assert cut_replica(replace(BARE, expert_parallel=8), model).kv_shards == 8
    gqa = known_models()["Qwen3-235B-A22B"]
    assert cut_replica(replace(BARE, tensor_parallel=8), gqa).kv_shards == 4


def test_memory_leaves_room_for_keys_and_values():
    model = known_models()["Qwen3-8B"]
    pool = replace(BARE, count=1, memory_fraction=0.9)
    left = 0.9 * 141 * 2**30 - 2 * model.params
    assert kv_room(model, H200, pool, 1000) == int(left / 147456)
    assert offload_room(model, replace(pool, kv_offload_gb=147.456)) == 1_000_000


def test_measured_times_beat_the_formulas():
    timings = TimingSettings(decode_base_s=0.01, decode_row_s=0.001, decode_token_s=1e-6)
    measured = MeasuredEngine(engine(), timings, max_running=8, kv_tokens=100)
    assert measured.decode_s(5, 1000) == pytest.approx(0.016)
    assert measured.prefill_s(100, 0) == engine().prefill_s(100, 0)


def trainer(**changes):
    pool = replace(TrainerPoolSettings(accelerator="H200 SXM", count=8, mfu=0.5), **changes)
    return RooflineTrainer(known_models()["Qwen3-8B"], H200, pool, TimingSettings(), None, 0.0, 0.0)


def test_a_step_takes_its_flops_over_what_is_reached():
    model = known_models()["Qwen3-8B"]
    flops = 10_000 * 6 * model.linear_params + 6 * 147456 * 2e7
    assert trainer().step_s(10, 10_000, 2e7) == pytest.approx(flops / (8 * 989e12 * 0.5))
    assert trainer(fixed_s=3.0).step_s(10, 10_000, 2e7) == pytest.approx(3 + flops / (8 * 989e12 * 0.5))


def test_a_pipeline_has_a_bubble():
    assert trainer(pipeline_parallel=2).bubble(4) == pytest.approx(1 / 2)  # 4 rows over 4 pipelines
    assert trainer(pipeline_parallel=2).bubble(400) == pytest.approx(1 / 101)
    assert trainer().bubble(4) == 0


def test_offload_moves_the_optimizer_out_of_memory_and_takes_time():
    model, pool = known_models()["Qwen3-8B"], TrainerPoolSettings(count=8)
    here = trainer_bytes(model, pool, model.params, 1000)
    there = trainer_bytes(model, replace(pool, offload_optimizer=True), model.params, 1000)
    assert here["optimizer"] == 12 * model.params / 8
    assert there["optimizer"] == 0
    assert trainer(offload_optimizer=True).offload_s == pytest.approx(34 * model.params / 8 / 50e9)
