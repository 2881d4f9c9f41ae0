"""Ages of tokens, exact, over lineages."""

from __future__ import annotations

import pytest

from headway.core.records import VersionSpan
from headway.queue.staleness import age, oldest
from headway.queue.state import State


def state(step: int, lineage: int = 0, forks: tuple[int, ...] = ()) -> State:
    return State(step=step, lineage=lineage, forks=list(forks))


@pytest.mark.parametrize(("number", "wanted"), [(7, 0), (5, 2), (0, 7)])
def test_in_one_lineage_a_token_is_as_old_as_the_steps_since(number: int, wanted: int) -> None:
    assert age(state(7), 0, number) == wanted


def test_a_token_of_an_ancestor_version_ages_by_the_surviving_steps() -> None:
    assert age(state(12, 1, (10,)), 0, 8) == 4


def test_a_token_of_a_lost_branch_ages_by_its_steps_past_the_fork_plus_the_steps_since() -> None:
    # version 13 of a life that was resumed at step 10, now at step 12: 3 lost steps and 2 new ones
    assert age(state(12, 1, (10,)), 0, 13) == 5


def test_a_second_resume_further_back_counts_from_the_older_fork() -> None:
    assert age(state(6, 2, (10, 5)), 0, 9) == (6 - 5) + (9 - 5)
    assert age(state(6, 2, (10, 5)), 1, 7) == (6 - 5) + (7 - 5)
    assert age(state(6, 2, (10, 5)), 2, 6) == 0


def test_a_batch_is_as_old_as_its_oldest_token() -> None:
    spans = [VersionSpan(0, 6, 10), VersionSpan(0, 4, 1), VersionSpan(0, 7, 3)]
    assert oldest(state(7), spans) == 3
    assert oldest(state(7), []) == 0
