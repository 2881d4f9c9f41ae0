"""Seeded scenarios with faults: 100 in every run of the tests, 10,000 among the slow ones."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.core.notes import RolloutSettled
from tests.simulation.ledger import all_notes
from tests.simulation.scenarios import play


def play_all(seeds: range) -> tuple[Counter[str], Counter[str]]:
    """Play every seed; return how the runs ended and how their rollouts did. A failure names its seed."""
    outcomes: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    for seed in seeds:
        try:
            run, finish = play(seed)
        except BaseException as error:
            error.add_note(f"the scenario of seed {seed}")
            raise
        outcomes[finish.outcome] += 1
        fates.update(note.fate for note in all_notes(run.entries, RolloutSettled))
    return outcomes, fates


def test_a_hundred_seeds_keep_every_invariant_and_meet_every_end() -> None:
    outcomes, fates = play_all(range(100))
    assert set(outcomes) >= {"steps", "no_signal", "guard", "failed", "evaluated"}
    assert set(fates) >= {
        "trained",
        "filtered",
        "pruned",
        "stale",
        "voided",
        "stopped",
        "carried",
        "evaluated",
    }


@pytest.mark.parametrize("seed", [982, 2230])
def test_an_evaluation_whose_generators_keep_dying_ends(seed: int) -> None:
    assert set(play_all(range(seed, seed + 1))[0]) == {"evaluated"}


def test_a_rollout_of_an_earlier_life_that_is_only_scored_in_this_one_may_be_cancelled() -> None:
    assert set(play_all(range(1107, 1108))[0]) == {"steps"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(100, 10_100, 1000))
def test_ten_thousand_seeds_keep_every_invariant(start: int) -> None:
    outcomes, _ = play_all(range(start, start + 1000))
    print(f"seeds {start} to {start + 999}: {dict(outcomes)}")
