"""Advantages of one group."""

import math
import subprocess
import sys

import pytest
import torch

from headway.algorithms.advantages import ADVANTAGES, BatchTokens, advantage_function, load_advantage
from headway.algorithms.advantages.overlong import overlong_penalty
from headway.algorithms.advantages.signal import signal_function
from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Signal
from headway.core.errors import HeadwayError, UserError


def advantages(name, rewards, **settings):
    return advantage_function(AlgorithmSettings(advantage=name, **settings))(rewards)


COMPARING = [name for name in ADVANTAGES.names if name not in ("process", "reinforce_pp")]


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


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("rewards", [[], [0.3], [0.1] * 7, [1e9] * 3, [0.0, 0.0]])
def test_groups_without_spread_have_exact_zeros(name, rewards):
    assert advantages(name, rewards, std_eps=0.0) == [0.0] * len(rewards)


@pytest.mark.parametrize("name", COMPARING)
def test_advantages_of_a_group_sum_to_zero(name):
    assert math.fsum(advantages(name, [0.1, 0.7, 0.2, 1.0, 0.9])) == pytest.approx(0, abs=1e-15)


def test_maxrl_weighs_a_rare_success_more_and_is_zero_without_one():
    assert advantages("maxrl", [1.0, 0.0, 0.0, 0.0]) == [3.0, -1.0, -1.0, -1.0]
    assert advantages("maxrl", [1.0, 1.0, 1.0, 0.0]) == pytest.approx([1 / 3] * 3 + [-1.0])
    assert advantages("maxrl", [0.0, 0.0]) == [0.0, 0.0]
    with pytest.raises(HeadwayError, match="maxrl needs rewards of at least 0"):
        advantages("maxrl", [-1.0, 1.0])


# --- over the batch -------------------------------------------------------------------------------


def over_the_batch(name, values, lengths, **settings):
    """The batch half on rollouts with one advantage each, of so many tokens."""
    chosen = AlgorithmSettings(advantage=name, **settings)
    counts = torch.tensor(lengths)
    rollouts = torch.arange(len(lengths)).repeat_interleave(counts)
    from_end = torch.tensor([n for length in lengths for n in reversed(range(length))])
    tokens = BatchTokens(torch.tensor(values, dtype=torch.float64)[rollouts], rollouts, from_end)
    return load_advantage(chosen).batch(tokens, chosen).tolist()


def test_magistral_divides_by_the_std_over_rollouts_whatever_their_lengths():
    assert advantages("magistral", [1.0, 3.0]) == [-1.0, 1.0]
    # Two groups, [-1, 1] and [-2, 2]: the squares sum to 10, n - 1 = 3.
    std = math.sqrt(10 / 3)
    found = over_the_batch("magistral", [-1.0, 1.0, -2.0, 2.0], [1, 3, 2, 1], std_eps=0.0)
    assert found == pytest.approx([-1 / std] + [1 / std] * 3 + [-2 / std] * 2 + [2 / std], abs=1e-15)
    assert over_the_batch("magistral", [-1.0, 1.0], [1, 1], std_eps=1.0)[1] == pytest.approx(
        1 / (1 + math.sqrt(2))
    )
    assert over_the_batch("magistral", [0.0, 0.0], [2, 1], std_eps=0.0) == [0.0] * 3


def test_reinforce_pp_whitens_over_tokens():
    assert advantages("reinforce_pp", [1.0, 0.0, 1.0]) == [1.0, 0.0, 1.0]
    # Tokens 1, 1, 1, 0: mean 3/4, squares 3/16 + 9/16 = 3/4, std 1/2.
    assert over_the_batch("reinforce_pp", [1.0, 0.0], [3, 1], std_eps=0.0) == pytest.approx(
        [0.5] * 3 + [-1.5]
    )
    assert over_the_batch("reinforce_pp", [0.7, 0.7], [3, 1], std_eps=0.0) == [0.0] * 4


def test_reinforce_pp_discounts_a_token_by_those_that_follow_it():
    # Returns 1/4, 1/2, 1 and 0: mean 7/16, squares (9 + 1 + 81 + 49) / 256 = 140/256, std sqrt(140/768).
    std = math.sqrt(140 / 768)
    found = over_the_batch("reinforce_pp", [1.0, 0.0], [3, 1], std_eps=0.0, discount=0.5)
    assert found == pytest.approx([-3 / 16 / std, 1 / 16 / std, 9 / 16 / std, -7 / 16 / std])


def test_reinforce_pp_baseline_subtracts_the_group_s_mean_first():
    assert advantages("reinforce_pp_baseline", [1.0, 0.0]) == [0.5, -0.5]
    assert over_the_batch("reinforce_pp_baseline", [0.5, -0.5], [1, 1], std_eps=0.0) == pytest.approx(
        [math.sqrt(0.5), -math.sqrt(0.5)]
    )


# --- turns and lengths ----------------------------------------------------------------------------


def signal(rewards, turns=(), num_tokens=(), **settings):
    named = tuple((f"r{index}", reward) for index, reward in enumerate(rewards))
    return signal_function(AlgorithmSettings(**settings))(Signal("g", named, tuple(num_tokens), turns))


def test_process_gives_a_turn_what_followed_from_it():
    # Rewards 1, 0, 0, 1 of two rollouts: mean 1/2, std sqrt(1/3), standardised +-s with s = sqrt(3)/2.
    s = math.sqrt(3) / 2
    found = signal([1.0, 1.0], ((1.0, 0.0), (0.0, 1.0)), advantage="process", std_eps=0.0)
    assert found.turns[0] == pytest.approx((0.0, -s))
    assert found.turns[1] == pytest.approx((0.0, s))
    assert dict(found.advantages) == pytest.approx({"r0": -s, "r1": s})
    found = signal([1.0, 1.0], ((1.0, 0.0), (0.0, 1.0)), advantage="process", std_eps=0.0, discount=0.5)
    assert found.turns[0] == pytest.approx((s / 2, -s))


def test_process_compares_rollouts_of_different_numbers_of_turns():
    found = signal([1.0, 1.0], ((3.0,), (0.0, 0.0)), advantage="process", std_eps=0.0)
    # Mean 1, std sqrt(6/2): standardised 2/sqrt(3) and twice -1/sqrt(3).
    assert found.turns[0] == pytest.approx((2 / math.sqrt(3),))
    assert found.turns[1] == pytest.approx((-2 / math.sqrt(3), -1 / math.sqrt(3)))
    equal = signal([1.0, 1.0], ((1.0,), (1.0, 1.0)), advantage="process")
    assert (equal.advantages, equal.turns) == ((("r0", 0.0), ("r1", 0.0)), ((0.0,), (0.0, 0.0)))


@pytest.mark.parametrize("turns", [(), ((1.0,), ())])
def test_process_names_a_rollout_without_rewards_of_turns(turns):
    with pytest.raises(HeadwayError, match=r"process needs a reward for each turn, and rollout r\d has none"):
        signal([1.0, 0.0], turns, advantage="process")


def test_rewards_of_turns_change_nothing_where_the_advantage_does_not_ask():
    assert signal([1.0, 0.0], ((5.0,), (7.0,))) == signal([1.0, 0.0])


def test_the_overlong_penalty_is_dapo_s():
    found = [overlong_penalty(num, 20480, 4096) for num in (0, 16384, 16385, 18432, 20480, 99999)]
    assert found == [0, 0, -1 / 4096, -0.5, -1, -1]
    assert [overlong_penalty(num, 100, 0) for num in (99, 100, 101)] == [0, 0, -1]
    assert overlong_penalty(10**9, 0, 0) == 0


def test_overlong_rollouts_lose_reward_before_the_group_is_compared():
    shaping = {"overlong_max_tokens": 20, "overlong_buffer_tokens": 10}
    found = signal([1.0, 1.0], num_tokens=[10, 15], advantage="dr_grpo", **shaping)
    assert found.advantages == (("r0", 0.25), ("r1", -0.25))
    assert signal([1.0, 1.0], num_tokens=[10, 15], advantage="dr_grpo").advantages == (("r0", 0), ("r1", 0))
    turns = signal(
        [1.0, 1.0], ((1.0, 1.0), (1.0, 1.0)), [10, 15], advantage="process", std_eps=0.0, **shaping
    ).turns
    # Rewards 1, 1, 1, 1/2: mean 7/8, std 1/4; the penalty is the second rollout's last turn's.
    assert turns == (pytest.approx((1.0, 0.5)), pytest.approx((-1.0, -1.5)))


# --- users' own -----------------------------------------------------------------------------------


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


def test_a_user_s_advantage_may_have_a_batch_half(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from headway.algorithms.advantages import Advantage\n"
        "def plain(rewards, settings):\n    return list(rewards)\n"
        "def halved(tokens, settings):\n    return tokens.advantages / 2\n"
        "mine = Advantage(plain, batch=halved)\n"
    )
    assert advantages(f"{tmp_path}/mine.py:mine", [1.0, 2.0]) == [1.0, 2.0]
    assert over_the_batch(f"{tmp_path}/mine.py:mine", [1.0, 2.0], [1, 2]) == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({}, []),
        (
            {
                "advantage": "rlo",
                "loss": "ppo",
                "correction": "tiss",
                "normaliser": "constant",
                "dual_clip": 1.1,
            },
            ["advantage", "loss", "correction", "constant_tokens", "dual_clip"],
        ),
        ({"loss": "gspo", "clip_low": 0.1, "clip_high": 0.28}, ["clip_low", "clip_high"]),
        ({"loss": "cispo", "clip_high": 0.28}, ["clip_high"]),
        ({"cispo_min_weight": 5.0}, ["cispo_min_weight"]),
        ({"mis_min": 3.0}, ["mis_min"]),
        ({"icepop_min": 6.0}, ["icepop_min"]),
        ({"loss": "decoupled", "correction": "tis"}, ["correction"]),
        ({"loss": "decoupled"}, []),
        ({"kl_coef": 0.01, "kl_estimator": "k1"}, ["kl_estimator"]),
        ({"kl_coef": 0.01, "kl_estimator": "k1", "kl_importance": True}, []),
        ({"overlong_max_tokens": 10, "overlong_buffer_tokens": 11}, ["overlong_buffer_tokens"]),
        ({"overlong_max_tokens": 10, "advantage": "maxrl"}, ["overlong_max_tokens"]),
    ],
)
def test_settings_report_their_own_problems(settings, keys):
    problems = AlgorithmSettings(**settings).problems()
    assert [problem.key for problem in problems] == keys
    assert all(problem.rule for problem in problems)


def test_a_bound_of_another_loss_is_named_with_the_one_that_counts():
    (problem,) = AlgorithmSettings(loss="gspo", clip_high=0.28).problems()
    assert problem.remedy == "Set gspo_clip_high instead"


def test_settings_and_advantages_load_no_torch():
    code = (
        "import sys, headway.algorithms.advantages.signal, headway.algorithms.settings as s,"
        "headway.algorithms.normaliser, headway.trainer.settings, headway.trainer.checkpoints,"
        "headway.trainer.schedule, headway.trainer.sequences, headway.weights.manifest,"
        "headway.weights.names\n"
        "from headway.algorithms.advantages import ADVANTAGES\n"
        "s.AlgorithmSettings().problems(), [ADVANTAGES.load(name) for name in ADVANTAGES.names]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
