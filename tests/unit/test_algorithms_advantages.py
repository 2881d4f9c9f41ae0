"""Advantages of one group."""

import math
import subprocess
import sys

import pytest

from headway.algorithms.advantages import ADVANTAGES, advantage_function
from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import HeadwayError, UserError


def advantages(name, rewards, **settings):
    return advantage_function(AlgorithmSettings(advantage=name, **settings))(rewards)


def doubled(rewards, settings):
    return [2 * reward for reward in rewards]


def broken(rewards, settings):
    return [math.nan] * len(rewards)


def test_uneven_groups_are_centred_each_on_its_own():
    assert advantages("dr_grpo", [1.0, 3.0]) == [-1.0, 1.0]
    assert advantages("dr_grpo", [5.0]) == [0.0]


def test_uneven_groups_are_scaled_by_the_std_with_n_minus_1():
    found = advantages("grpo", [1.0, 3.0], std_eps=0.0)
    assert found == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-15)
    assert advantages("grpo", [5.0], std_eps=0.0) == [0.0]


def test_std_eps_is_added_to_the_std():
    assert advantages("grpo", [0.0, 2.0], std_eps=1.0)[1] == pytest.approx(1 / (1 + math.sqrt(2)))


def test_rloo_is_the_reward_against_the_mean_of_the_others():
    found = advantages("rloo", [1.0, 0.0, 0.5])
    assert found == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5])


@pytest.mark.parametrize("name", ADVANTAGES.names)
@pytest.mark.parametrize("rewards", [[], [0.3], [0.1] * 7, [1e9] * 3, [0.0, 0.0]])
def test_groups_without_spread_have_exact_zeros(name, rewards):
    assert advantages(name, rewards, std_eps=0.0) == [0.0] * len(rewards)


@pytest.mark.parametrize("name", ADVANTAGES.names)
def test_advantages_of_a_group_sum_to_zero(name):
    assert math.fsum(advantages(name, [0.1, 0.7, 0.2, 1.0, 0.9])) == pytest.approx(0, abs=1e-15)


def test_a_user_function_is_loaded_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_advantage.py").write_text("def plain(rewards, settings):\n    return list(rewards)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert advantages("my_advantage:plain", [1.0, 1.0]) == [1.0, 1.0]


def test_a_user_function_is_loaded_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("def plain(rewards, settings):\n    return list(rewards)\n")
    assert advantages(f"{tmp_path}/mine.py:plain", [1.0, 1.0]) == [1.0, 1.0]


def test_a_registered_function_is_found_by_name_and_a_name_is_taken_once(monkeypatch):
    monkeypatch.setattr(ADVANTAGES, "_functions", {})
    ADVANTAGES.register("doubled")(doubled)
    assert advantages("doubled", [1.0]) == [2.0]
    with pytest.raises(UserError, match="registered once"):
        ADVANTAGES.register("grpo")(doubled)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grop", "Did you mean 'grpo'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("math:no_such_function", "no_such_function"),
        ("math:pi", "function 'pi'"),
        ("no_such_file.py:f", "the file does not exist"),
        (__file__, "must name a function"),
        ("math:sin", r"must be callable as sin\(rewards, settings\): too many positional"),
        ("asyncio:sleep", "must not be async"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_the_users_error(name, words):
    with pytest.raises(UserError, match=words) as caught:
        advantages(name, [1.0])
    assert caught.value.key == "algorithm.advantage"


def test_a_user_function_that_returns_nan_is_named(monkeypatch):
    monkeypatch.setattr(ADVANTAGES, "_functions", {"broken": broken})
    with pytest.raises(HeadwayError, match="advantage broken must return one finite number"):
        advantages("broken", [1.0, 2.0])


def test_settings_report_their_own_problems():
    assert AlgorithmSettings().problems() == []
    bad = AlgorithmSettings(advantage="rlo", loss="ppo", normaliser="constant", dual_clip=1.1)
    assert [problem.key for problem in bad.problems()] == [
        "advantage",
        "loss",
        "constant_tokens",
        "dual_clip",
    ]


def test_settings_and_advantages_load_no_torch():
    code = (
        "import sys, headway.algorithms.advantages.grpo, headway.algorithms.settings as s,"
        "headway.algorithms.normaliser, headway.trainer.settings, headway.trainer.checkpoints,"
        "headway.trainer.schedule, headway.trainer.sequences, headway.weights.manifest,"
        "headway.weights.names\n"
        "s.AlgorithmSettings().problems()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
