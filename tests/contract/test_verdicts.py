"""A user's verdict on a group: the contract, the hook's loading, and the thread that calls it."""

from __future__ import annotations

import queue
import re
from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.core.commands import Signal
from headway.core.errors import ConfigError, HeadwayError
from headway.core.events import CommandRefused, GroupSignal
from headway.queue.entry_settings import AcceptanceSettings
from headway.queue.verdict import verdict_function
from headway.runtime.signals import SignalThread
from tests.contract.verdict_contract import check_verdict

HOOKS = """
def spread(rewards, lengths):
    return max(rewards) > min(rewards), "all  alike"

def short(rewards, lengths):
    return sum(lengths) < 100

def wrong(rewards, lengths):
    return "yes"

def broken(rewards, lengths):
    raise ZeroDivisionError("no")

def compared(rewards, lengths):
    import numpy

    kept = numpy.float64(max(rewards)) > 0.5
    return (~kept, "alone") if len(rewards) == 1 else kept

def wordy(rewards, lengths):
    return True, "one\\ntwo"

def lonely(rewards):
    return True
"""
CONFIG = """
[model]
path = "tiny"
[environment]
name = "arithmetic"
[acceptance]
verdict = "hooks.py:{}"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hooks.py").write_text(HOOKS)
    return tmp_path


def verdict(folder, name):
    return verdict_function(AcceptanceSettings(verdict=f"{folder}/hooks.py:{name}"))


def answer_of(function):
    """Ask the driver's thread about one group; the advantages are the centred rewards."""

    def advantages(command):
        mean = sum(reward for _, reward in command.rewards) / len(command.rewards)
        return GroupSignal(command.group, tuple((name, reward - mean) for name, reward in command.rewards))

    answers = queue.SimpleQueue()
    SignalThread(advantages, answers.put, function).ask(
        Signal("t000000", (("t000000.0", 0.0), ("t000000.1", 1.0)), (60, 70))
    )
    return answers.get(timeout=10)


def test_the_page_s_own_verdict_keeps_the_contract():
    page = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    def not_too_long.*?(?=^\S)", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec("\n".join(line[4:] for line in block.splitlines()), names)
    check_verdict(names["not_too_long"])
    assert names["not_too_long"]([1.0], [2001]) == (False, "its longest rollout has 2001 tokens")


def test_a_verdict_that_breaks_the_contract_is_told():
    with pytest.raises(AssertionError, match="must be True or False"):
        check_verdict(lambda rewards, lengths: None)
    with pytest.raises(AssertionError, match="leave its arguments"):
        check_verdict(lambda rewards, lengths: not rewards.pop())


def test_the_driver_s_thread_asks_it_beside_the_advantages(folder):
    kept, dropped = answer_of(verdict(folder, "spread")), answer_of(verdict(folder, "short"))
    assert (kept.keep, kept.reason) == (True, "all alike")  # of one line
    assert (dropped.keep, dropped.reason) == (False, "")
    assert dropped.advantages == (("t000000.0", -0.5), ("t000000.1", 0.5))
    assert answer_of(None).keep


def test_a_verdict_that_raises_ends_the_run_by_name(folder):
    refused = answer_of(verdict(folder, "broken"))
    assert isinstance(refused, CommandRefused)
    line = 1 + HOOKS[: HOOKS.index("raise ZeroDivisionError")].count("\n")
    place = f"{folder}/hooks.py:{line}"
    assert refused.message == f"the verdict (acceptance.verdict) raised ZeroDivisionError at {place}: no"


def test_an_answer_that_is_no_verdict_is_an_error(folder):
    function = verdict(folder, "wrong")
    assert function is not None
    with pytest.raises(HeadwayError, match=r"must return True, False or \(bool, reason\)"):
        function([1.0], [1])


def test_a_bool_of_numpy_is_a_bool(folder):
    function = verdict(folder, "compared")
    assert function([0.0, 1.0], [1, 1]) == (True, "")
    assert function([0.0, 0.0], [1, 1]) == (False, "")
    assert function([0.0], [1]) == (True, "alone")


def test_a_reason_of_two_lines_is_an_error(folder):
    with pytest.raises(HeadwayError, match="the reason of one line"):
        verdict(folder, "wordy")([1.0], [1])
    with pytest.raises(AssertionError, match="of one line"):
        check_verdict(lambda rewards, lengths: (True, "one\ntwo"))


def test_its_file_is_relative_to_the_config(folder):
    (folder / "run.toml").write_text(CONFIG.format("spread"))
    assert load_config(folder / "run.toml").acceptance.verdict == f"{folder}/hooks.py:spread"


@pytest.mark.parametrize(
    ("name", "rule"), [("gone", "must have a function 'gone'"), ("lonely", "callable as")]
)
def test_a_broken_verdict_is_a_config_error_at_its_line(folder, name, rule):
    (folder / "run.toml").write_text(CONFIG.format(name))
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "run.toml")
    (problem,) = map(str, caught.value.problems)
    assert problem.startswith(f"{folder}/run.toml:7: acceptance.verdict: ")
    assert rule in problem
