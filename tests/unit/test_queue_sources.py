"""The mix of task sources: weights are met at every moment, and right after drops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.queue.entry_settings import Source
from headway.queue.sources import MixState, count, give_back, next_source

weights = st.lists(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0, 7.0]), min_size=1, max_size=7)


def take(sources: list[Source], state: MixState) -> str:
    source = next_source(sources, state)
    count(state, source.name)
    return source.name


@given(weights)
def test_every_source_has_its_share_to_within_one_group_at_any_moment(given_weights: list[float]) -> None:
    sources = [Source(f"s{i}", weight) for i, weight in enumerate(given_weights)]
    whole, state = sum(given_weights), MixState()
    for place in range(1, 120):
        take(sources, state)
        for source in sources:
            assert abs(state.counts.get(source.name, 0) - place * source.weight / whole) < 1.0


def test_the_order_is_the_same_each_time_and_even() -> None:
    sources = [Source("easy", 0.7), Source("hard", 0.3)]
    state = MixState()
    order = [take(sources, state) for _ in range(10)]
    assert order == ["easy", "easy", "hard", "easy", "easy", "hard", "easy", "easy", "easy", "hard"]


def test_a_source_without_weight_is_never_asked() -> None:
    sources, state = [Source("a", 0.0), Source("b", 1.0)], MixState()
    assert {take(sources, state) for _ in range(5)} == {"b"}


def test_a_dropped_group_is_made_up_for_by_its_own_source_within_the_budget() -> None:
    sources, state = [Source("a", 1.0), Source("b", 1.0)], MixState()
    for _ in range(4):
        take(sources, state)
    give_back(state, "b", budget=2)
    assert take(sources, state) == "b"
    give_back(state, "b", budget=2)
    give_back(state, "b", budget=2)  # beyond the budget: the place counts as used
    assert state.counts == {"a": 2, "b": 1}


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_a_source_that_yields_nothing_does_not_take_the_turns_of_the_others(budget: int) -> None:
    sources, state = [Source("dead", 1.0), Source("live", 1.0)], MixState()
    taken: list[str] = []
    for _ in range(40):
        taken.append(take(sources, state))
        if taken[-1] == "dead":
            give_back(state, "dead", budget)
        elif taken.count("live") % 4 == 0:
            state.given_back = 0  # a batch
    # four groups of each, and the refills that the budget allows, for each batch of four
    assert taken.count("live") >= 40 * 4 // (8 + budget) - 1
