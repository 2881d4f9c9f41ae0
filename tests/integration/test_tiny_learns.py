"""The tiny example learns, in sync and in async; its report and its replay say so from the command line."""

import json

import pytest

from tests.integration.conftest import ROOT

EXAMPLE = ROOT / "examples" / "tiny.toml"


@pytest.mark.parametrize(
    "bound", [pytest.param(0, id="sync", marks=pytest.mark.slow), pytest.param(2, id="async")]
)
def test_the_tiny_example_learns(bench, bound):
    ended = bench.headway("train", EXAMPLE, f"run.dir={bench.runs}", f"queue.bound={bound}", "stop.wall_s=0")
    assert ended.code == 0, ended.text
    run_dir = bench.runs / "tiny"
    bench.check(run_dir)

    replayed = bench.headway("replay", run_dir, "--verify")
    assert replayed.code == 0, replayed.text
    reported = bench.headway("report", run_dir, "--json")
    assert reported.code == 0, reported.text
    report = json.loads(reported.out)
    print({key: report[key] for key in ("reward.first", "reward.last", "eval.first", "eval.last", "wall_s")})

    assert (report["outcome"], report["steps"]) == ("steps", 40)
    assert report["mode"] == ("sync" if bound == 0 else "async")
    assert report["conservation.ok"]
    for kind in ("trajectory", "token"):
        staleness = report[f"rl.staleness.{kind}"]
        assert sum(staleness["counts"].values()) > 0
        assert all(int(steps) <= bound for steps in staleness["counts"])
    assert report["reward.last"] - report["reward.first"] >= 0.1
    assert report["eval.last"] > report["eval.first"]
