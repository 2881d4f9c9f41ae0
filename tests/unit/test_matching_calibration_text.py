"""What a calibration says in the terminal."""

from __future__ import annotations

import pytest

from headway.matching.calibrate_text import calibration_text
from headway.matching.calibration import Calibration, Parameter
from headway.telemetry.text import flop_rate


def test_warnings_stand_first_and_units_are_told():
    known = (Parameter("timings.load_s", 1e-14, "", num=5),)
    lines = calibration_text(Calibration({}, 5, known, ("the load explains 0 %",)), "x").splitlines()
    assert lines[0] == "x: 5 steps; times are in seconds, lengths in tokens"
    assert lines[1] == "Warning: the load explains 0 %"
    assert next(line for line in lines if "load_s" in line).split() == ["load_s", "0", "n", "=", "5"]


def test_a_distribution_that_does_not_fit_is_told():
    assert Parameter("workload.tool_s", 1.0, "", ks=0.166).fit == "KS 0.166: does not fit"
    assert Parameter("workload.tool_s", 1.0, "", ks=0.1).fit == "KS 0.100"


def test_an_interval_that_leaves_its_value_out_is_not_told():
    assert Parameter("workload.score_s", 0.0, "", low=1e-6, high=1e-6).fit == ""


@pytest.mark.parametrize(
    ("per_s", "words"), [(4.0091553e15, "4.0 PFLOP/s"), (12.3e9, "12.3 GFLOP/s"), (999.0, "999.0 FLOP/s")]
)
def test_rates_of_operations_are_scaled(per_s, words):
    assert flop_rate(per_s) == words
