"""A package of verifiers plays and scores rollouts; what it swallows, loses or dies of is named."""

import asyncio
import contextlib
import os
import select
import signal

import pytest

from headway.core.errors import EnvironmentFault, EnvironmentSetupError, WorkerDiedError
from headway.core.events import RolloutFailed
from headway.environments.generation import GenerationLimits
from headway.environments.registry import build, members
from headway.environments.trial import try_once
from headway.environments.verifiers.lock import lock_text, read_lock
from headway.environments.verifiers.places import already, record
from headway.gateway.server import Gateway
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.gateway_parts import saying
from tests.unit.verifiers_parts import install_fake

NAME = "verifiers:fake-env"


@pytest.fixture
def package(tmp_path, monkeypatch):
    return install_fake(tmp_path / "cache", monkeypatch)


@pytest.fixture
def made(package):
    """Build the environment; its processes end with the test."""
    built = []

    def make(kind="", *, rows=8, turns=1, **settings):
        built.append(build(NAME, {"args": {"kind": kind, "rows": rows, "turns": turns}} | settings))
        return built[-1]

    yield make
    for environment in built:
        environment.close()


@pytest.fixture
def tried(made, tmp_path, renderer):
    async def run(kind="", *, says=("3",), environment=None, index=0, **settings):
        provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))
        async with Gateway(name=str(tmp_path)).serving() as gateway:
            environment = environment or made(kind, **settings)
            engine, limits = saying(renderer, *says), GenerationLimits(64, 512)
            return await try_once(
                environment, engine, renderer, provider, limits, server=gateway, split="eval", index=index
            )

    return run


def test_splits_do_not_overlap_and_do_not_hang_on_the_seed(package, made):
    one, other = build(NAME, {"args": {"rows": 20}}, 1), build(NAME, {"args": {"rows": 20}}, 2)
    try:
        texts = [
            [[e.task(split, at, None).payload["messages"][0]["content"] for at in range(e.num_tasks(split))]
             for split in ("train", "eval")]
            for e in (one, other)
        ]  # fmt: skip
    finally:
        one.close()
        other.close()
    assert [len(split) for split in texts[0]] == [15, 5]
    assert texts[0][1] == texts[1][1]
    assert texts[0][0] != texts[1][0]
    assert sorted(texts[0][0]) == sorted(texts[1][0])
    assert not {*texts[0][0]} & {*texts[0][1]}


@pytest.mark.parametrize("right", [True, False])
async def test_a_rollout_is_scored_by_the_package(tried, made, right):
    environment = made()
    answer = environment.task("eval", 0, None).payload["messages"][0]["content"].split()[1]
    trial = await tried(environment=environment, says=(answer if right else "no",))
    assert trial.failure == ""
    assert trial.score.reward == float(right)
    assert trial.score.metrics == {"right": float(right), "length": float(len(answer if right else "no"))}
    assert trial.outcome["stop"] == "max_turns_reached"


async def test_each_turn_continues_the_one_before(tried):
    trial = await tried(turns=3, says=("a", "b", "c"))
    assert trial.failure == ""
    said = [message["content"] for message in trial.transcript if message["role"] == "assistant"]
    assert said == ["a", "b", "c"]
    assert len(trial.shown["branches"]) == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [("raises", "right raised KeyError: 'gold'"), ("not finite", "a reward must be finite")],
)
async def test_a_swallowed_exception_of_a_reward_is_a_failed_score(tried, kind, words):
    trial = await tried(kind)
    assert trial.failure == ""
    assert not hasattr(trial.score, "reward")
    assert words in trial.score.message


async def test_a_reward_that_failed_is_tried_once_more_with_the_same_rollout(tried):
    trial = await tried("raises once")
    assert trial.outcome["failures"]
    assert trial.score.reward in (0.0, 1.0)


async def test_a_metric_without_weight_that_raises_is_left_out(tried):
    trial = await tried("metric raises")
    assert [*trial.score.metrics] == ["right"]
    assert any("length is left out" in reason for reason in trial.score.reasons)


@pytest.mark.parametrize(
    ("kind", "turns", "words"),
    [
        ("no ids", 1, "those of 1 of 1 answers are missing"),
        ("hides a turn", 2, "shows 1 answers of 2 that the policy gave"),
        ("other ids", 1, "shows 1 of 1 answers that the policy did not give"),
        ("error", 1, "no tool"),
    ],
)
async def test_a_rollout_that_does_not_match_what_was_recorded_fails(tried, kind, turns, words):
    trial = await tried(kind, turns=turns)
    assert words in trial.failure if kind != "error" else trial.failure
    assert trial.score is None


async def test_answers_that_the_package_hides_are_trained_where_that_is_meant(tried):
    trial = await tried("hides a turn", turns=2, unseen_answers="train")
    assert trial.failure == ""


async def test_a_worker_that_dies_is_the_infrastructures_and_is_started_again(tried, made):
    environment = made("dies")
    for _ in range(2):
        trial = await tried(environment=environment)
        (failed,) = [event for event in trial.events if isinstance(event, RolloutFailed)]
        assert (failed.owner, failed.cause) == ("infrastructure", "worker_died")
        assert "exit code 3" in failed.message
        assert "out of memory, nearly" in failed.message
    assert environment._processes[0].num_started == 2


def test_a_question_after_its_death_starts_another(made):
    environment = made()
    environment.num_tasks("train")
    (process,) = environment._processes
    os.kill(process._child._process.pid, signal.SIGKILL)
    process._child._process.wait()
    with contextlib.suppress(WorkerDiedError):  # it is asked before its death is seen, or after
        environment.task("train", 0, None)
    assert environment.task("train", 0, None).payload["messages"]


@pytest.mark.parametrize("how", ["closed", "left alone"])
def test_what_a_package_started_ends_with_its_worker(made, tmp_path, how):
    environment = made(f"serves {tmp_path / 'pid'}")
    environment.num_tasks("train")
    server = os.pidfd_open(int((tmp_path / "pid").read_text()))
    if how == "closed":
        environment.close()
    else:  # as when the process that asks has been killed
        environment._processes[0]._child._process.stdin.close()
    try:
        assert select.select([server], [], [], 30.0)[0]
    finally:
        os.close(server)


async def test_a_cancelled_request_is_cancelled_in_the_worker(made):
    environment = made()
    environment.num_tasks("train")
    (process,) = environment._processes
    task = environment.task("train", 0, None).payload
    request = {name: task[name] for name in ("split", "index", "key")}
    speaking = {"base_url": "http://127.0.0.1:9/v1", "api_key": "x", "model": "policy", "do": "rollout"}
    asked = asyncio.ensure_future(process.asked(request | speaking))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert environment.task("train", 1, None).payload["messages"]


async def test_a_worker_that_is_stuck_is_ended_after_a_cancellation(made, monkeypatch):
    monkeypatch.setattr("headway.environments.verifiers.process._CANCEL_S", 0.1)
    environment = made("stuck")
    environment.num_tasks("train")
    (process,) = environment._processes
    child = process._child
    task = environment.task("train", 0, None).payload
    request = {name: task[name] for name in ("split", "index", "key")}
    speaking = {"base_url": "http://127.0.0.1:9/v1", "api_key": "x", "model": "policy", "do": "rollout"}
    asked, other = (asyncio.ensure_future(process.asked(request | speaking)) for _ in range(2))
    while "stuck now" not in child._tail():  # noqa: ASYNC110 - another process says it
        await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    with pytest.raises(WorkerDiedError, match=r"did not react to a cancellation[\s\S]*fake_env\.py"):
        await other


def test_tasks_that_change_are_refused(made, package):
    environment = made()
    (process,) = environment._processes
    process._loaded = {"train": ["another"]}
    with pytest.raises(EnvironmentFault, match="same tasks each time"):
        environment.num_tasks("train")


def test_arguments_that_the_package_does_not_take_are_named(package):
    environment = build(NAME, {"args": {"rows": "x", "size": 3}})
    with pytest.raises(EnvironmentSetupError, match="unexpected keyword argument 'size'"):
        environment.num_tasks("train")


def test_a_package_that_is_not_installed_says_how_to(package):
    with pytest.raises(EnvironmentSetupError, match="headway env install fake-envs"):
        build("verifiers:fake_envs")


def test_a_lock_that_differs_is_refused(package, tmp_path):
    lock = tmp_path / "x.lock"
    lock.write_text(lock_text(package))
    build(NAME, {"lock": str(lock)})
    lock.write_text(lock_text(package).replace("0.3.9", "0.3.1"))
    with pytest.raises(
        EnvironmentSetupError, match=r"2 lines differ: verifiers==0\.3\.1, verifiers==0\.3\.9"
    ):
        build(NAME, {"lock": str(lock)})
    lock.write_text("verifiers>=0.3\n")
    with pytest.raises(EnvironmentSetupError, match="NAME==VERSION"):
        read_lock(lock)


def test_what_is_installed_is_listed(package):
    assert members("verifiers") == [(NAME, "version 1.0, with verifiers 0.3.9; fake-env==1.0")]
    assert already("fake_env") == already("fake-env@1.0") == package
    assert already("fake-env@1.1") is None
    record(package)
    assert already("fake-env") == package
