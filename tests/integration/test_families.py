"""A run with a model of each family besides Llama, which all other tests train."""

import pytest

from headway.core.payload import read_payload
from headway.core.records import ROUTED_EXPERTS
from headway.models.tiny import write_tokenizer
from tests.unit.family_models import make_model

SLOW = pytest.mark.slow  # the contract tests cover these but for the processes around them


@pytest.mark.parametrize(
    "variant", [pytest.param("qwen2", marks=SLOW), pytest.param("qwen3", marks=SLOW), "qwen3 moe"]
)
def test_a_run_trains_it_and_generator_and_trainer_agree(bench, variant):
    model = bench.folder / "model"
    make_model(variant, vocab_size=259).save_pretrained(model)
    write_tokenizer(model)
    lora = ["trainer.full=false", "trainer.lora_rank=4", "trainer.learning_rate=1e-3"]
    ended = bench.train(f"model.path={model}", *bench.environment(), *lora, "stop.steps=2", "queue.bound=0")
    assert ended.code == 0, ended.text
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("steps", 2)
    for step in bench.entries("StepEnded"):
        assert step["metrics"]["mismatch_max"] < 1e-4
    payloads = bench.run_dir / "payloads"
    for rollout in bench.entries("RolloutEnded"):
        (sample,) = read_payload(payloads, rollout["payload"]).samples
        assert (ROUTED_EXPERTS in sample.streams) == (variant == "qwen3 moe")


def test_a_model_of_another_family_is_refused_with_the_list(bench):
    model = bench.folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}')
    lines = bench.train(f"model.path={model}").refused()
    assert "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM" in lines
