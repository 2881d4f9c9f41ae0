"""Commands on real parts: a smoke run, the resolved config, one rollout shown."""

import pytest

from tests.integration.conftest import ROOT

EXAMPLES = ROOT / "examples"


def test_a_smoke_run_takes_two_steps(bench):
    ended = bench.headway("train", EXAMPLES / "tiny.toml", "--smoke", f"run.dir={bench.runs}")
    assert ended.code == 0, ended.text
    assert ended.out.startswith(f"run directory: {bench.runs}/tiny\n")
    report = bench.check(bench.runs / "tiny")
    assert (report["outcome"], report["steps"]) == ("steps", 2)

    told = bench.headway("report", bench.runs / "tiny")
    assert told.code == 0, told.text
    assert "WARNING" not in told.out


@pytest.mark.parametrize("example", ["tiny", "quickstart"])
def test_the_resolved_config_is_printed_and_starts_nothing(bench, example):
    ended = bench.headway("train", EXAMPLES / f"{example}.toml", "--print-config", f"run.dir={bench.runs}")
    assert ended.code == 0, ended.text
    assert f'dir = "{bench.runs}"' in ended.out
    assert not bench.runs.exists()


def test_one_rollout_is_shown_with_what_is_trained(bench):
    ended = bench.headway("env", "try", "arithmetic", "--model", "tiny", "--temperature", "0", "--level", "1")
    assert ended.code == 0, ended.text
    assert ended.out.startswith("model: tiny (--model)\n")
    assert "--- masked, " in ended.out
    assert "--- trainable, " in ended.out
    assert "\n  reward " in ended.out
    assert bench.leftovers() == []
