"""A judge, shaping and rewards of groups in real runs; what a judge fails at is nobody's reward."""

import re

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
    dropped = [event for event in signals if not event["keep"]]
    assert dropped
    assert all("HTTP 400: not this one" in event["reason"] for event in dropped)
    assert {event["reward"] for event in bench.entries("Scored")} == {0.0}
