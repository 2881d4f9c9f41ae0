"""The guard's statistics: collapses are found, calm runs raise no false alarm."""

from __future__ import annotations

import math
import random

import pytest

from headway.queue.watch import (
    WATCHED,
    Course,
    Finding,
    GuardSettings,
    back_to,
    limits_of,
    median,
    observe,
)

SETTINGS = GuardSettings()


def watch(
    name: str, values: list[float], settings: GuardSettings = SETTINGS
) -> tuple[list[tuple[int, Finding]], Course]:
    """Return (step, finding) for every alarm that begins."""
    course, found = Course(), []
    for step, value in enumerate(values, start=1):
        finding = observe(settings, name, course, step, value)
        if finding is not None:
            found.append((step, finding))
    return found, course


def calm(name: str, seed: int, num: int = 200) -> list[float]:
    """A metric of a run that learns: drifting and noisy, with single odd steps."""
    rng = random.Random(f"{name}/{seed}")
    values: list[float] = []
    for step in range(num):
        done = step / num
        match name:
            case "reward":  # mean of 64 rollouts that are solved or not
                solved = 0.2 + 0.6 * done
                value = sum(rng.random() < solved for _ in range(64)) / 64
            case "entropy":
                value = (1.2 - 0.8 * done) * rng.lognormvariate(0, 0.06)
            case "grad_norm":
                value = 0.3 * rng.lognormvariate(0, 0.4) * (6.0 if rng.random() < 0.03 else 1.0)
            case "mismatch_kl":
                value = 2e-4 * rng.lognormvariate(0, 0.7)
            case "clip_fraction" | "mask_fraction":
                value = 0.01 * rng.lognormvariate(0, 0.5)
            case _:
                value = (80 + 80 * done) * rng.lognormvariate(0, 0.08)
        values.append(value)
    return values


COLLAPSED = {
    "reward": lambda old, k: old * 0.6**k,
    "entropy": lambda old, k: old * 0.7**k,
    "grad_norm": lambda old, k: old * 2.0**k,
    "mismatch_kl": lambda old, k: old + 5e-3 * 2.0**k,
    "clip_fraction": lambda old, k: min(1.0, old + 0.05 * k),
    "mask_fraction": lambda old, k: min(1.0, old + 0.05 * k),
    "response_tokens": lambda old, k: old * 1.4**k,
}


def test_median_of_even_and_odd_numbers() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_the_limit_is_so_many_robust_deviations_off() -> None:
    baseline = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.3, 0.7, 1.0]  # absolute deviations' median 0.1
    low, high = limits_of(SETTINGS, "reward", baseline)  # the newer half, 0.9 to 1.3 without order: median 1
    assert low == pytest.approx(1.0 - 3.5 * 0.14826)
    assert high is None
    low, high = limits_of(SETTINGS, "response_tokens", [math.e**x - 1 for x in baseline])
    assert low == pytest.approx(math.exp(1.0 - 5 * 0.14826) - 1)
    assert high == pytest.approx(math.exp(1.0 + 5 * 0.14826) - 1)
    assert limits_of(SETTINGS, "grad_norm", baseline)[0] is None


def test_a_baseline_without_spread_is_not_a_hair_trigger() -> None:
    assert limits_of(SETTINGS, "clip_fraction", [0.0] * 20)[1] == pytest.approx(0.1 * (math.exp(0.5) - 1))
    assert limits_of(SETTINGS, "response_tokens", [99.0] * 20)[1] == pytest.approx(100 * math.exp(0.5) - 1)
    assert limits_of(SETTINGS, "reward", [0.5] * 20)[0] == pytest.approx(0.5 - 3.5 * 0.02)


@pytest.mark.parametrize("name", sorted(WATCHED))
def test_a_collapse_is_found_within_a_window_of_its_start(name: str) -> None:
    for seed in range(40):
        values = calm(name, seed, 60)
        values += [COLLAPSED[name](values[-1], k) for k in range(1, 13)]
        found, _ = watch(name, values)
        late = [(step, finding) for step, finding in found if step > 60]
        assert late, (name, seed)
        step, finding = late[0]
        assert step <= 60 + 2 * SETTINGS.window
        assert 60 - SETTINGS.window < finding.since <= step


def test_false_alarms_of_calm_noisy_runs_are_few() -> None:
    """100 seeds of 200 steps of 7 metrics: 140,000 judgements, at most 3 runs with an alarm."""
    alarmed = [seed for seed in range(100) if any(watch(name, calm(name, seed))[0] for name in WATCHED)]
    assert len(alarmed) <= 3


def test_one_odd_step_is_no_alarm() -> None:
    values = [1.0 + 0.01 * (step % 3) for step in range(40)]
    values[30] = 1000.0
    assert watch("grad_norm", values)[0] == []


def test_an_absolute_limit_needs_no_baseline() -> None:
    settings = GuardSettings(window=1, max_grad_norm=10.0)
    found, _ = watch("grad_norm", [1.0, 11.0, 12.0, 1.0, 11.0], settings)
    assert [(step, finding.limit) for step, finding in found] == [(2, 10.0), (5, 10.0)]


def test_a_collapse_does_not_become_normal_until_it_has_lasted_a_baseline() -> None:
    values = [1.0 + 0.01 * (step % 3) for step in range(40)] + [0.1] * 60
    found, course = watch("entropy", values)
    assert [step for step, _ in found] == [43]
    assert course.alarmed_steps == 0
    assert median([sample.value for sample in course.baseline]) == 0.1


def test_going_back_forgets_the_steps_that_are_gone() -> None:
    values = [1.0 + 0.01 * (step % 3) for step in range(40)] + [0.1] * 4
    found, course = watch("entropy", values)
    assert found
    back_to(course, 38)
    assert (course.window, course.alarmed_steps) == ([], 0)
    assert max(sample.step for sample in course.baseline) == 38
    assert observe(SETTINGS, "entropy", course, 39, 1.0) is None
