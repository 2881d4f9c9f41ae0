"""A judge, shaping and rewards of groups in real runs; what a judge fails at is nobody's reward."""

import re

import pytest

from tests.integration.conftest import LAST_DIGIT
from tests.standins.judge import Answer, served

SECRET = "sk-integration-secret-445566"


def toml(**values):
    return [f"{key.replace('__', '.')}={value}" for key, value in values.items()]


def test_a_judge_that_fails_on_some_answers_is_never_a_reward_and_its_key_is_nowhere(bench, monkeypatch):
    monkeypatch.setenv("INTEGRATION_JUDGE_KEY", SECRET)

    def judge(body):
        asked = body["messages"][-1]["content"]
        if re.search(r"<question>\n[037]\+", asked):
            return Answer(500, f"the key {SECRET} is out of quota".encode())
        return 8

    with served(judge) as server:
        ended = bench.train(
            *bench.environment(score=LAST_DIGIT),
            *toml(
                judge__url=server.url, judge__model="m", judge__key_env="INTEGRATION_JUDGE_KEY",
                judge__weight=0.5, judge__max_tries=2, judge__backoff_s=0.01, reward__max_tries=2,
                environment__workers=2, shaping__token_penalty=0.001, queue__max_failed_groups=50,
            ),
        )  # fmt: skip
        assert ended.code == 0, ended.text
        assert {headers["Authorization"] for headers, _ in server.requests} == {f"Bearer {SECRET}"}
    report = bench.check()
    assert report["steps"] == 3
    told = [note for note in bench.entries("AttemptFailed") if note["owner"] == "infrastructure"]
    assert {note["cause"] for note in told} == {"judge"}
    assert all("HTTP 500: the key [key] is out of quota" in note["message"] for note in told)
    assert report["conservation.by_fate"]["failed_infrastructure"] >= 4
    lost = {note["rollout"] for note in told}
    assert not lost & {rollout for rows in bench.trained().values() for rollout in rows}
    for event in bench.entries("Scored"):
        metrics = event["metrics"]
        assert metrics["judge"] == 0.8
        assert metrics["unshaped"] == metrics["environment"] + 0.4
        assert event["reward"] == metrics["unshaped"] + metrics["shaping_length"]
        assert event["reasons"][1].startswith("judge: 8 by stand-in-1 (prompt ")
    assert list((bench.run_dir / "judge_cache").rglob("*.json"))
    said = ended.text + "".join(
        path.read_bytes().decode("utf-8", "replace") for path in bench.run_dir.rglob("*") if path.is_file()
    )
    assert SECRET not in said


def test_groups_are_rewarded_as_a_whole_and_dropped_where_the_judge_fails(bench):
    seen = set()

    def judge(body):
        """Prefer what comes first in the alphabet; the first question that is asked of is never answered."""
        asked = body["messages"][-1]["content"]
        question = re.search(r"<question>\n(.*)\n</question>", asked)[1]
        seen.add(question)
        if question.startswith("3+"):
            return Answer(400, b"not this one")
        first, second = (
            re.search(rf"<{name}>\n(.*)\n</{name}>", asked, re.DOTALL)[1] for name in ("first", "second")
        )
        return 10 if first < second else 0

    with served(judge) as server:
        ended = bench.train(
            *bench.environment(score='return Reward(0.0, ("nothing by itself",))'),
            *toml(
                judge__url=server.url, judge__model="m", judge__each="false", reward__group="pairwise",
                stop__steps=2,
            ),
        )  # fmt: skip
        assert ended.code == 0, ended.text
    report = bench.check()
    assert report["steps"] == 2
    signals = bench.entries("GroupSignal")
    kept = [event for event in signals if event["keep"]]
    assert all(len(event["rewards"]) == 4 for event in kept)
    assert any(len(set(event["rewards"])) > 1 for event in kept)
    assert all(abs(sum(event["rewards"]) - 2.0) < 1e-9 for event in kept)
    failed = [event for event in signals if event["failed"]]
    assert {event["failed"] for event in failed} == {"judge"}
    assert all("HTTP 400: not this one" in event["reason"] for event in failed)
    assert len(failed) == 2 * len({event["group"] for event in failed})  # each was asked for twice
    fates = report["conservation.by_fate"]
    assert fates["failed_infrastructure"] == 4 * len({event["group"] for event in failed})
    assert "filtered" not in fates
    assert {event["reward"] for event in bench.entries("Scored")} == {0.0}


def away_and_back(bench, command, port, away_s, judge):
    """Let a judge's server end at the run's second step, and begin again; return what the run ended with."""
    with served(judge, port=port):
        command.until_step(1)
    command.wait_a_while(away_s)
    assert command.process.poll() is None, command.ended().text
    with served(judge, port=port):
        return command.ended()


@pytest.mark.parametrize(
    "group", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["each", "pairwise"]
)
def test_a_judge_that_goes_away_and_comes_back_costs_no_rollout(bench, group):
    with served(8) as server:
        port, url = server.port, server.url
    pairs = toml(judge__each="false", reward__group="pairwise") if group else []
    command = bench.start(
        "train", bench.config, *bench.environment(), *pairs,
        *toml(
            judge__url=url, judge__model="m", judge__max_tries=2, judge__backoff_s=0.01,
            judge__cache="false", queue__max_failed_groups=1, stop__steps=40,
        ),
    )  # fmt: skip
    ended = away_and_back(bench, command, port, 6, lambda body: 8)
    assert ended.code == 0, ended.text
    report = bench.check()
    assert report["steps"] == 40
    assert "failed_infrastructure" not in report["conservation.by_fate"]
    away, back = (note for note in bench.entries("Warned") if note["code"].startswith("judge_"))
    assert away["code"] == "judge_away"
    assert away["text"].startswith(f"the judge at {url} gave no answer after 2 tries: ConnectError")
    assert back["code"] == "judge_back"
    if not group:
        told = bench.entries("AttemptFailed")
        assert {(note["owner"], note["cause"], note["retried"]) for note in told} == {
            ("infrastructure", "judge_away", True)
        }


@pytest.mark.slow  # the scheduler's tests have it without processes
def test_a_judge_that_stays_away_ends_the_run_by_its_address_and_a_resume_scores_what_was_finished(bench):
    with served(8) as server:
        port, url = server.port, server.url
    ended = bench.train(
        *bench.environment(),
        *toml(
            judge__url=url, judge__model="m", judge__max_tries=2, judge__backoff_s=0.01,
            reward__max_outage_s=3,
        ),
    )  # fmt: skip
    assert ended.code == 1, ended.text
    assert f"the judge at {url} gave no answer after 2 tries" in ended.out
    assert "it has answered nobody for 3 s (reward.max_outage_s)" in ended.out
    assert "Traceback" not in ended.out + ended.err
    report = bench.check()
    fates = report["conservation.by_fate"]
    assert set(fates) == {"carried"}
    finished = {event["rollout"] for event in bench.entries("RolloutEnded")}
    assert len(finished) == fates["carried"]
    with served(8, port=port):
        resumed = bench.headway("resume", bench.run_dir)
    assert resumed.code == 0, resumed.text
    bench.check()
    ended_once = [event["rollout"] for event in bench.entries("RolloutEnded")]
    assert len(ended_once) == len(set(ended_once))
    assert finished & {rollout for rows in bench.trained().values() for rollout in rows}
