"""The concurrency controller on traces and on an engine whose memory grows with what runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headway.queue.band import Band, BandState, ConcurrencySettings, sample

BAND = Band(low=0.6, high=0.85, hard=0.95, growth=0.35, least=4, most=400)
LIFETIME_S = 10.0


def play(trace: list[tuple[float, int]], limit: float = 100.0) -> tuple[BandState, list[int]]:
    """Feed (used, in flight) once a second."""
    state, parked = BandState(limit), []
    for second, (used, in_flight) in enumerate(trace):
        parked.append(
            sample(state, BAND, used=used, in_flight=in_flight, now=float(second), lifetime_s=LIFETIME_S)
        )
    return state, parked


def test_below_the_band_a_reached_limit_doubles_in_one_lifetime_at_most() -> None:
    state, _ = play([(0.0, 1000)] * 11)  # ten seconds after the first sample
    assert state.limit == pytest.approx(100.0 * 1.1**10)
    assert (state.phase, state.is_open) == ("grow", True)


def test_near_the_band_growth_aims_at_its_middle() -> None:
    state, _ = play([(0.59, 100), (0.59, 1000)])
    assert state.limit == pytest.approx(100.0 * (1 + (0.725 / 0.59 - 1) / 10))
    state, _ = play([(0.45, 100), (0.45, 1000)])
    assert state.limit == pytest.approx(100.0 * (1 + 0.35 / 10))


def test_inside_the_band_the_limit_holds() -> None:
    state, _ = play([(0.6, 100), (0.7, 100), (0.84, 100)])
    assert (state.limit, state.phase) == (100.0, "hold")


def test_a_limit_that_nobody_reaches_does_not_wind_up_and_one_overload_acts_at_once() -> None:
    state, _ = play([(0.3, 20)] * 100)
    assert state.limit == 100.0
    assert sample(state, BAND, used=0.9, in_flight=20, now=100.0, lifetime_s=LIFETIME_S) == 0
    assert (state.phase, state.is_open) == ("soft", False)
    assert sample(state, BAND, used=0.96, in_flight=20, now=101.0, lifetime_s=LIFETIME_S) == 5
    assert state.limit == pytest.approx(20 * 0.725 / 0.96)


def test_a_short_peak_closes_the_gate_and_leaves_the_limit() -> None:
    state, _ = play([(0.7, 100)] * 20 + [(0.9, 100)])
    assert (state.limit, state.is_open) == (100.0, False)
    for used, is_open in ((0.8, False), (0.73, False), (0.72, True)):
        sample(state, BAND, used=used, in_flight=99, now=21.0, lifetime_s=LIFETIME_S)
        assert state.is_open == is_open
    assert state.limit == 100.0


def test_a_share_that_is_too_high_on_average_cuts_the_limit_once() -> None:
    state, _ = play([(0.7, 100)] * 20 + [(0.92, 100)] * 3)
    assert state.limit == pytest.approx(100 * 0.725 / 0.8725, rel=1e-3)  # an average over 2.5 measurements
    before = state.limit
    for now in range(23, 27):
        sample(state, BAND, used=0.94, in_flight=int(before), now=now, lifetime_s=LIFETIME_S)
    assert state.limit == before  # half a lifetime has not passed
    sample(state, BAND, used=0.94, in_flight=int(before), now=28.0, lifetime_s=LIFETIME_S)
    assert state.limit < before


def test_a_hard_trim_names_how_many_give_up_their_memory_now() -> None:
    state, parked = play([(1.0, 100)])
    assert int(state.limit) == 72
    assert parked == [28]
    assert state.phase == "hard"


def test_a_hard_trim_is_not_repeated_before_it_has_had_its_effect() -> None:
    state, parked = play([(1.0, 100), (1.0, 100), (0.99, 90), (0.9, 80)])
    assert int(state.limit) == 72
    assert parked == [28, 28, 18, 0]


def test_nothing_grows_before_a_lifetime_is_known() -> None:
    state = BandState(8.0)
    for second in range(50):
        sample(state, BAND, used=0.0, in_flight=8, now=float(second), lifetime_s=0.0)
    assert state.limit == 8.0


@pytest.mark.parametrize("used", [0.0, 1.0])
def test_bounds_hold_above_and_below(used: float) -> None:
    state = BandState(50.0)
    for second in range(2000):
        in_flight = int(state.limit)
        sample(state, BAND, used=used, in_flight=in_flight, now=float(second), lifetime_s=LIFETIME_S)
        assert BAND.least <= state.limit <= BAND.most
    assert state.limit == (BAND.most if used == 0.0 else BAND.least)


@dataclass
class Engine:
    """Rollouts that each gain a token a tick until their length, in a cache of fixed size."""

    capacity: int
    mean_tokens: int
    rng: random.Random
    running: list[list[int]] = field(default_factory=list[list[int]])  # [tokens, length]
    over: int = 0  # ticks above capacity: where an engine would preempt

    def tick(self, limit: int, group: int) -> None:
        for rollout in self.running:
            rollout[0] += 1
        self.running = [rollout for rollout in self.running if rollout[0] < rollout[1]]
        while len(self.running) + group <= limit or not self.running:
            lengths = [
                max(1, round(self.mean_tokens * self.rng.lognormvariate(-0.18, 0.6))) for _ in range(group)
            ]
            self.running += [[0, length] for length in lengths]
        self.over += self.used >= 1.0

    @property
    def used(self) -> float:
        return sum(tokens for tokens, _ in self.running) / self.capacity


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("every", [1, 20], ids=["sampled often", "sampled rarely"])
@pytest.mark.parametrize("start", [4.0, 1000.0], ids=["from few", "from too many"])
def test_no_oscillation_on_an_engine_whose_memory_grows_with_what_runs(
    seed: int, every: int, start: float
) -> None:
    engine = Engine(capacity=60_000, mean_tokens=200, rng=random.Random(seed))
    band = Band(0.6, 0.85, 0.95, 0.35, least=4, most=2000, unit=4)
    state = BandState(start)
    limits: list[float] = []
    used: list[float] = []
    for tick in range(6000):
        engine.tick(int(state.limit), 4)
        if tick % every == 0:
            excess = sample(
                state,
                band,
                used=engine.used,
                in_flight=len(engine.running),
                now=float(tick),
                lifetime_s=200.0,
            )
            del engine.running[len(engine.running) - excess :]  # the youngest
        if tick == 3000:
            engine.over = 0
        if tick > 3000:
            limits.append(state.limit)
            used.append(engine.used)
    assert engine.over == 0
    assert 0.55 < sum(used) / len(used) < 0.85
    assert max(limits) < 1.4 * min(limits)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"low": 0.9}, "low"),
        ({"growth": 0.8}, "growth"),
        ({"high": 0.97}, "hard"),
        ({"initial": 9, "max_running": 8}, "max_running"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes: dict[str, float], key: str) -> None:
    assert [problem.key for problem in ConcurrencySettings(**changes).problems()] == [key]  # pyright: ignore


def test_the_defaults_fit() -> None:
    assert list(ConcurrencySettings().problems()) == []
