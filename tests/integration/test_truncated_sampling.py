"""A run that samples truncated: the trainer's ratio is that of the same truncated distributions."""

import pytest

from headway.core.kept import Kept
from headway.core.payload import read_payload

CUT = ["generator.top_p=0.9", "generator.top_k=20", "generator.min_p=0.01", "generator.temperature=0.8"]


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 2])
def test_fresh_tokens_have_ratio_1_and_carry_what_they_were_drawn_from(bench, bound):
    ended = bench.train(*bench.environment(), *CUT, f"queue.bound={bound}", "stop.steps=3")
    assert ended.code == 0, ended.text
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("steps", 3)
    steps = bench.entries("StepEnded")
    fresh = [step["metrics"] for step in steps if step["metrics"]["num_fresh_tokens"]]
    assert fresh
    assert max(metrics["mismatch_max"] for metrics in fresh) < 1e-4
    assert max(metrics["mismatch_mean"] for metrics in fresh) < 2e-6
    payloads = bench.run_dir / "payloads"
    for rollout in bench.entries("RolloutEnded"):
        (sample,) = read_payload(payloads, rollout["payload"]).samples
        kept = Kept.of(sample.streams)
        assert len(kept.counts) == sample.num_trainable
        assert 1 <= min(kept.counts) <= max(kept.counts) <= 20


def test_bounds_of_truncation_name_key_file_and_line(bench):
    text = bench.config.read_text()
    assert "[generator]\n" in text
    bench.config.write_text(text.replace("[generator]\n", "[generator]\ntop_p = 0\nmin_p = 1.5\n"))
    line = text[: text.index("[generator]\n")].count("\n") + 2
    lines = bench.train().refused()
    assert f"test.toml:{line}: generator.top_p: must be above 0 and at most 1 (got 0)" in lines
    assert f"test.toml:{line + 1}: generator.min_p: must be at least 0 and at most 1 (got 1.5)" in lines
