"""When machines of a shared pool move between generator and trainer, and how many: exact values."""

from __future__ import annotations

import pytest

from headway.matching.control_signals import Cycle
from headway.matching.machines import advise_move, best_move


@pytest.mark.parametrize(
    ("production", "consumption", "generator", "trainer", "move", "gain"),
    [
        # min(10 (4 + k) / 4, 30 (4 - k) / 4): 17.5 against 7.5 (k = 3), 15 and 15 (k = 2), 12.5 (k = 1)
        (10.0, 30.0, 4, 4, 2, 0.5),
        (30.0, 10.0, 4, 4, -2, 0.5),
        # as much on either side: nothing is better
        (10.0, 10.0, 4, 4, 0, 0.0),
        # of 3 machines the trainer keeps one, however little it does: min(3, 100 / 3)
        (1.0, 100.0, 1, 3, 2, 2.0),
        # one machine each: nothing can move
        (1.0, 100.0, 1, 1, 0, 0.0),
        # a move that takes more than it gives: min(10 * 3 / 2, 12 / 2) = 6
        (10.0, 12.0, 2, 2, 0, 0.0),
        # of two moves that come to the same, the smaller: min(4 + k, 8 (8 - k) / 8): 6 at k = 2 only
        (4.0, 8.0, 4, 8, 2, 0.5),
    ],
)
def test_the_best_move_makes_the_slower_half_as_fast_as_it_can_be(
    production: float, consumption: float, generator: int, trainer: int, move: int, gain: float
) -> None:
    assert best_move(production, consumption, generator, trainer) == (move, pytest.approx(gain))


@pytest.mark.parametrize(("production", "consumption"), [(0.0, 5.0), (5.0, 0.0)])
def test_a_half_that_stands_still_says_nothing_of_a_move(production: float, consumption: float) -> None:
    assert best_move(production, consumption, 4, 4) == (0, 0.0)


def test_each_half_keeps_a_machine() -> None:
    for generator in range(1, 6):
        for trainer in range(1, 6):
            for production, consumption in ((1e-6, 1e6), (1e6, 1e-6)):
                move, _ = best_move(production, consumption, generator, trainer)
                assert generator + move >= 1
                assert trainer - move >= 1


def _cycles(*, wait: float = 0.0, queued: int = 0, in_flight: float = 40.0, num: int = 12) -> list[Cycle]:
    """Return cycles of 100 s in which 5 groups of 8 rollouts are trained: 0.4 rollouts/s."""
    one = Cycle(
        t=0.0, length_s=100.0, wait_s=100.0 * wait, num_rollouts=40, num_groups=5, num_queued=queued,
        in_flight=in_flight,
    )  # fmt: skip
    return [one] * num


def test_a_trainer_that_waits_for_full_engines_gives_machines_away() -> None:
    # Production 0.4/s; consumption while it computes 0.4 / (1 - 0.5) = 0.8/s.
    # min(0.4 (4 + k) / 4, 0.8 (4 - k) / 4): 0.5 and 0.6 at k = 1, 0.6 and 0.4 at k = 2.
    assert advise_move(_cycles(wait=0.5), 4, 4, full=True) == (
        "move 1 of the trainer's machines to the generator: the trainer waited 50% of the last 12 cycles; "
        "about +25% samples/s"
    )


def test_while_engines_have_room_the_wait_is_for_settings_to_end() -> None:
    assert advise_move(_cycles(wait=0.5), 4, 4, full=False) == ""


def test_groups_that_stand_ready_all_the_time_are_production_that_nobody_takes() -> None:
    # Little: 5 groups of 8 stand ready and 40 are in flight: production could be 0.4 (1 + 40 / 40) = 0.8/s;
    # the trainer takes 0.4/s. min(0.8 (4 - k) / 4, 0.4 (4 + k) / 4): 0.6 and 0.5 at k = 1.
    assert advise_move(_cycles(queued=5), 4, 4, full=False) == (
        "move 1 of the generator's machines to the trainer: the trainer waited 0% of the last 12 cycles; "
        "about +25% samples/s"
    )


def test_what_stands_ready_in_some_cycles_only_is_no_reserve() -> None:
    assert advise_move([*_cycles(queued=5), *_cycles(queued=0, num=1)], 4, 4, full=False) == ""


@pytest.mark.parametrize(("machines", "moves"), [(19, True), (21, False)])
def test_a_move_is_advised_for_five_percent_and_not_for_less(machines: int, moves: bool) -> None:
    # One machine adds 1/19 = 5.3 % or 1/21 = 4.8 %; two take more from the trainer than it waits.
    said = advise_move(_cycles(wait=0.1), machines, machines, full=True)
    assert said.startswith("move 1 of the trainer's machines to the generator") == moves


def test_nothing_in_flight_is_no_reserve_of_any_size() -> None:
    assert advise_move(_cycles(queued=5, in_flight=0.0), 4, 4, full=False) == ""
