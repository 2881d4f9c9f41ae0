"""A run with exact numerics: every step's journal says that generator and trainer agree to the last bit."""

import pytest

LORA = ["trainer.full=false", "trainer.lora_rank=4", "trainer.learning_rate=1e-2"]
FULL = ["trainer.full=true", "trainer.learning_rate=1e-3"]


@pytest.mark.parametrize(
    ("bound", "trained"),
    [
        pytest.param(0, LORA, id="bound 0, LoRA", marks=pytest.mark.slow),
        pytest.param(1, FULL, id="bound 1, full"),
    ],
)
def test_the_journal_says_zero_at_each_step(bench, bound, trained):
    ended = bench.train(
        *bench.environment(),
        *trained,
        'generator.numerics="exact"',
        "generator.max_context_tokens=40",
        "generator.temperature=1.3",
        f"queue.bound={bound}",
        "stop.steps=3",
    )
    assert ended.code == 0, ended.text
    report = bench.check()  # headway replay --verify among others
    assert (report["outcome"], report["steps"]) == ("steps", 3)
    steps = [entry["metrics"] for entry in bench.entries("StepEnded")]
    fresh = [metrics for metrics in steps if metrics["num_fresh_tokens"]]
    assert len(fresh) >= (3 if bound == 0 else 1)
    for metrics in fresh:
        assert metrics["mismatch_mean"] == metrics["mismatch_max"] == 0.0
    if bound == 0:
        for metrics in steps:
            assert metrics["mismatch_kl"] == 0.0
            assert metrics["ratio_mean"] == metrics["ratio_max"] == 1.0
    assert any(metrics["grad_norm"] > 0 for metrics in steps)
    assert not any("exact numerics did not hold" in line for line in ended.text.splitlines())
