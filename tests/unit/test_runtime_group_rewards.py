"""Rewards of groups between the scheduler's Signal and the advantage."""

import queue
from array import array

import pytest

from headway.algorithms.advantages.signal import signal_function
from headway.algorithms.settings import AlgorithmSettings
from headway.config.compose import Config
from headway.config.load import load_config
from headway.core.commands import Signal
from headway.core.errors import UserError
from headway.core.events import CommandRefused, GroupSignal
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import FLAGS, FLOATS, TOKENS, TrainingSample, VersionSpan
from headway.rewards.faults import JudgeAwayError, JudgeError
from headway.rewards.group import load_group_reward
from headway.runtime.group_rewards import GroupRewardThread
from headway.runtime.rewards import group_reward, longest_s, reward_stage
from headway.runtime.signals import SignalThread


def command(folder, *answers):
    payloads = PayloadWriter(folder, "w0")
    references = []
    for answer in answers:
        ids = array(TOKENS, [1])
        sample = TrainingSample(ids, array(FLAGS, [1]), array(FLOATS, [0.0]), [VersionSpan(0, 0, 1)], 1.0)
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
        references.append(payloads.append(Payload(answer, "train/0", [sample], {"answer": answer}, said)))
    payloads.close()
    lengths = tuple(map(len, answers))
    return Signal("g", tuple((answer, 1.0) for answer in answers), lengths, (), tuple(references), "train/0")


def answered(function, given, folder):
    """What comes of one command."""
    told = queue.SimpleQueue()
    signals = SignalThread(signal_function(AlgorithmSettings(advantage="dr_grpo")), told.put)
    GroupRewardThread(function, folder, told.put, signals.ask).ask(given)
    return told.get(timeout=20)


def test_the_rewards_of_a_group_are_what_the_advantage_sees(tmp_path):
    given = command(tmp_path, "aa", "bbbb")
    event = answered(load_group_reward("shorter", None, 10.0), given, tmp_path)
    assert event == GroupSignal("g", (("aa", 0.5), ("bbbb", -0.5)), rewards=(1.5, 0.5))


@pytest.mark.parametrize(("error", "cause"), [(JudgeError, "judge"), (JudgeAwayError, "judge_away")])
def test_a_judge_that_fails_gives_no_signal_and_says_why(tmp_path, error, cause):
    async def away(members):
        raise error("the judge is away")

    event = answered(away, command(tmp_path, "a", "b"), tmp_path)
    assert event == GroupSignal("g", (), keep=False, reason="the judge is away", failed=cause)


@pytest.mark.parametrize("error", [ValueError("x"), UserError("the rule")])
def test_a_function_that_breaks_its_contract_ends_the_run(tmp_path, error):
    async def bad(members):
        raise error

    event = answered(bad, command(tmp_path, "a"), tmp_path)
    assert isinstance(event, CommandRefused)
    assert event.target == "g"


def config(tmp_path, text):
    file = tmp_path / "c.toml"
    file.write_text(f'[model]\npath = "tiny"\n[environment]\nname = "arithmetic"\n{text}')
    return load_config(file)


def test_without_any_of_it_nothing_is_built(tmp_path):
    plain = config(tmp_path, "")
    assert isinstance(plain, Config)
    assert reward_stage(plain) is None
    assert group_reward(plain) is None
    assert longest_s(plain) == 120.0 + 30.0 + 2.0


def test_the_rate_is_shared_by_all_that_ask(tmp_path):
    judge = '[judge]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\nrequests_per_min = 60\n'
    both = config(tmp_path, f'workers = 3\n{judge}[reward]\ngroup = "pairwise"\n')
    assert reward_stage(both)._judge._share == 1 / 4
    only_pairs = config(tmp_path, f'workers = 3\n{judge}each = false\n[reward]\ngroup = "pairwise"\n')
    assert reward_stage(only_pairs) is None
    assert group_reward(only_pairs) is not None
