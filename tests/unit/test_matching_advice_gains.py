"""Gains of advice at the ends of their ranges."""

import pytest

from headway.matching.advice.finding import at_most, factor_without


def test_a_share_of_everything_gives_a_bounded_factor():
    assert factor_without(1.0) == pytest.approx(100.0)
    assert factor_without(0.5) == pytest.approx(2.0)


def test_a_trainer_that_waits_all_the_time_gives_a_bounded_gain():
    assert at_most(factor_without(1.0), 1.0, "x").high == pytest.approx(99.0)
