"""A judge over a real HTTP server: what it says, what it costs to be wrong, and that its failure is no 0."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from email.utils import formatdate
from itertools import count

import pytest

from headway.core.clock import wall_time
from headway.core.errors import EnvironmentSetupError, UserError
from headway.rewards.cache import Cache, key_of
from headway.rewards.faults import JudgeError
from headway.rewards.judge import Judge
from headway.rewards.limiter import Limiter
from headway.rewards.rubric import Part, Rubric
from headway.rewards.settings import JudgeSettings, filled
from headway.rewards.waiting import Waiting
from tests.standins.judge import Answer, completion, graded, served
from tests.unit.reward_parts import case


def settings(server, **changes):
    options = {"model": "grader", "backoff_s": 0.001, "prompt": "{question}|{answer}|{form}"} | changes
    return JudgeSettings(url=server.url, **options)


async def graded_by(server, made, folder=None, **changes):
    judge = Judge(settings(server, **changes), folder)
    try:
        return await judge(made)
    finally:
        await judge.close()


async def test_a_grade_says_who_gave_it_and_why():
    with served(7) as server:
        reward = await graded_by(server, case("4"))
    assert reward.score == pytest.approx(0.7)
    assert reward.metrics == {"cached": 0.0, "repaired": 0.0}
    (words,) = reward.reasons
    assert words.startswith("7 by stand-in-1 (prompt ")
    assert words.endswith("): so it is")
    (_, body) = server.requests[0]
    assert body["model"] == "grader"
    assert body["temperature"] == 0.0
    asked = body["messages"][0]["content"]
    assert asked.startswith("What is 2 + 2?|4|Answer with one JSON object")
    assert body["response_format"]["json_schema"]["schema"]["properties"]["score"]["maximum"] == 10.0


async def test_another_prompt_is_another_version():
    with served(7) as server:
        first, second, third = [
            (await graded_by(server, case(answer), prompt=prompt)).reasons[0]
            for answer, prompt in (("4", "{answer} a"), ("5", "{answer} a"), ("4", "{answer} b"))
        ]
    assert first == second != third


async def test_a_judge_is_a_part_of_a_rubric_by_name():
    with served(5) as server:
        judge = Judge(settings(server), name="style")
        reward = await Rubric(Part(judge, 0.5), Part(lambda answer: 1.0, name="one")).of(case("4"))
        await judge.close()
    assert reward.score == 0.5 * 0.5 + 1.0
    assert reward.metrics["style"] == 0.5
    assert reward.metrics["style_cached"] == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, b"oops"),
        Answer(429, b"slow down"),
        Answer(200, b"<html>garbage</html>"),
        Answer(200, b"[1]"),
        Answer(200, graded(7)[:40]),
        Answer(200, graded(7)[:40], cut=100),
        Answer(529, b""),
        Answer(503, b"", {"Retry-After": "0"}),
        Answer(503, b"", {"Retry-After": "soon"}),
    ],
)
async def test_what_passes_is_tried_again(answer):
    with served(answer, answer, 7) as server:
        assert (await graded_by(server, case("4"))).score == pytest.approx(0.7)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("answer", "words", "num"),
    [
        (Answer(500, b"oops"), r"gave no answer after 3 tries: HTTP 500: oops", 3),
        (Answer(200, b"nonsense"), r"an answer that is no JSON: nonsense", 3),
        (Answer(404, b"no such model"), r"refused: HTTP 404: no such model.*judge\.url", 1),
        (Answer(400, b"json_schema?"), r"response_format", 1),
        (Answer(302, b"", {"Location": "http://127.0.0.1:1/"}), r"refused: HTTP 302", 1),
        (Answer(429, b"", {"Retry-After": "3600"}), r"asks to come again in 3600 s: HTTP 429", 1),
    ],
)
async def test_a_judge_that_fails_is_an_error_and_no_score(answer, words, num):
    with served(answer) as server:
        with pytest.raises(JudgeError, match=words):
            await graded_by(server, case("4"), max_tries=3)
        assert len(server.requests) == num


async def test_a_judge_that_is_slow_is_given_up():
    words = r"after 2 tries: no answer within 0\.05 s"
    with served(Answer(delay_s=60)) as server, pytest.raises(JudgeError, match=words):
        await graded_by(server, case("4"), max_tries=2, request_timeout_s=0.05)


async def test_nobody_listens():
    judge = Judge(JudgeSettings(url="http://127.0.0.1:9/v1", model="m", max_tries=2, backoff_s=0.001))
    with pytest.raises(JudgeError, match="ConnectError"):
        await judge(case("4"))


async def test_retry_after_is_waited_for_by_all_and_counts_as_nobodys_time():
    waiting, soon = Waiting(), formatdate(wall_time() + 1.0, usegmt=True)
    with (
        served(
            Answer(429, b"", {"Retry-After": "0.2"}), Answer(429, b"", {"Retry-After": soon}), 7
        ) as server,
        waiting.here(),
    ):
        assert (await graded_by(server, case("4"))).score == pytest.approx(0.7)
    assert waiting.outside_s >= 0.2


async def test_a_pause_holds_for_whoever_asks_next():
    limiter, waiting = Limiter(4), Waiting()
    limiter.pause(0.1)
    with waiting.here():
        async with limiter.place():
            assert waiting.outside_s >= 0.1


async def test_the_rate_spreads_requests_and_waiting_is_outside():
    limiter, waiting = Limiter(8, requests_per_min=60 / 0.05), Waiting()

    async def one():
        async with limiter.place():
            pass

    with waiting.here():
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(one())
    assert waiting.outside_s >= 0.15


async def test_no_more_than_so_many_at_once():
    together = threading.Barrier(2, timeout=20)

    def pair(body):
        together.wait()
        return 7

    with served(pair) as server:
        judge = Judge(settings(server, max_concurrent=2))
        await asyncio.gather(*(judge.grade(question="?", answer=str(n)) for n in range(6)))
        await judge.close()
    assert server.most_running == 2


async def test_one_bad_answer_is_repaired():
    with served("I would say seven.", 7) as server:
        reward = await graded_by(server, case("4"))
    assert reward.score == pytest.approx(0.7)
    assert reward.metrics["repaired"] == 1.0
    messages = server.requests[1][1]["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "I would say seven."
    assert "it is no JSON" in messages[2]["content"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (completion('{"reason": "", "score": 11}'), "from 0 to 10, it was 11"),
        (completion('{"score": "7"}'), 'no number "score"'),
        (completion('{"score": true}'), 'no number "score"'),
        (completion('{"score": NaN}'), "no finite number"),
        (completion("[7]"), "no JSON object"),
        (completion(""), "it is empty"),
        (completion(None), "it is empty"),
        (completion('{"reason": "and so', finish="length"), "cut off after 512 tokens"),
        (b'{"choices": []}', "it holds no message"),
        (completion('{"score": ' + "9" * 400 + "}"), "no finite number"),
    ],
)
async def test_an_answer_without_a_grade_twice_is_a_failure_of_the_judge(body, words):
    with served(body) as server:
        with pytest.raises(JudgeError, match=f"twice it did not: .*{words}"):
            await graded_by(server, case("4"))
        assert len(server.requests) == 2


async def test_a_fenced_object_and_a_pattern_are_read():
    with served('```json\n{"reason": "r", "score": 4}\n```') as server:
        assert (await graded_by(server, case("4"))).score == pytest.approx(0.4)
    with served("Score: 3 would be harsh.\nScore: 5.5") as server:
        reward = await graded_by(server, case("4"), form="pattern", response_format="none")
        assert "response_format" not in server.requests[0][1]
    assert reward.score == pytest.approx(0.55)


async def test_what_an_answer_holds_is_put_in_once_and_braces_are_text():
    assert (
        filled('{"a": {question}} {answer}', {"question": "{answer}", "answer": "x"}) == '{"a": {answer}} x'
    )
    with served(1) as server:
        made = case("{form} {0}", payload={"value": 3}, data={"code": "print()"})
        await graded_by(server, made, prompt="{payload.value} {data.code} {answer} {conversation}")
        asked = server.requests[0][1]["messages"][0]["content"]
    assert asked == "3 print() {form} {0} [user]\nWhat is 2 + 2?\n\n[assistant]\n{form} {0}"


async def test_text_that_utf_8_has_no_form_for_is_judged_too(tmp_path):
    with served(1) as server:
        reward = await graded_by(server, case("half \ud83d"), tmp_path)
        assert server.requests[0][1]["messages"][0]["content"].startswith("What is 2 + 2?|half \ud83d|")
    assert reward.score == pytest.approx(0.1)


async def test_every_turn_is_graded_with_what_came_before_it():
    grades = {"a": 2, "b": 8}
    with served(lambda body: grades[body["messages"][0]["content"][-1]]) as server:
        reward = await graded_by(server, case("a", "b"), per_turn=True, prompt="{conversation}")
    assert reward.turns == (pytest.approx(0.2), pytest.approx(0.8))
    assert reward.score == pytest.approx(0.5)
    assert reward.reasons[1].startswith("turn 1: 8 by ")


async def test_an_equal_request_is_not_made_again_not_even_at_once(tmp_path):
    numbers = count(1)
    with served(lambda body: next(numbers)) as server:
        judge = Judge(settings(server), tmp_path)
        rewards = await asyncio.gather(*(judge(case("4")) for _ in range(5)))
        await judge.close()
        again = await graded_by(server, case("4"), tmp_path)
        other = await graded_by(server, case("5"), tmp_path)
        assert len(server.requests) == 2
    assert {reward.score for reward in (*rewards, again)} == {0.1}
    assert sorted(reward.metrics["cached"] for reward in rewards) == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert (other.score, again.metrics["cached"]) == (0.2, 1.0)


async def test_nothing_that_fails_is_kept_and_a_damaged_file_is_asked_again(tmp_path):
    with served("no", "no", 7, 8) as server:
        with pytest.raises(JudgeError):
            await graded_by(server, case("4"), tmp_path)
        assert not list(tmp_path.rglob("*.json"))
        assert (await graded_by(server, case("4"), tmp_path)).score == pytest.approx(0.7)
        (file,) = tmp_path.rglob("*.json")
        file.write_bytes(file.read_bytes()[:10])
        assert (await graded_by(server, case("4"), tmp_path)).score == pytest.approx(0.8)
        assert (await graded_by(server, case("4"), tmp_path)).score == pytest.approx(0.8)


_WRITER = """
import sys
from pathlib import Path
from headway.rewards.cache import Cache
cache = Cache(Path(sys.argv[1]))
print("on", flush=True)
while True:
    cache.put("ab" * 32, {"text": "x" * 200_000})
"""


def test_a_process_killed_while_it_writes_leaves_a_whole_answer_or_none(tmp_path):
    key = "ab" * 32
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        process.stdout.readline()
        while Cache(tmp_path).get(key) is None:
            pass
        process.kill()
        process.wait()
        assert Cache(tmp_path).get(key) == {"text": "x" * 200_000}


def test_the_key_of_a_request_is_of_all_of_it():
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
    assert key_of({"a": "\ud800"})


async def test_the_api_key_goes_into_one_header_and_nowhere_else(monkeypatch, tmp_path, capfd):
    secret = "sk-very-secret-0123456789"
    monkeypatch.setenv("JUDGE_TEST_KEY", secret)
    echoed = json.dumps({"error": f"Incorrect API key provided: {secret}"}).encode()
    with served(7, Answer(401, echoed), Answer(500, echoed)) as server:
        good = await graded_by(server, case("4"), tmp_path, key_env="JUDGE_TEST_KEY")
        assert server.requests[0][0]["Authorization"] == f"Bearer {secret}"
        with pytest.raises(JudgeError, match=r"Incorrect API key provided: \[key\]") as refused:
            await graded_by(server, case("5"), key_env="JUDGE_TEST_KEY")
        with pytest.raises(JudgeError, match=r"\[key\]") as failed:
            await graded_by(server, case("6"), key_env="JUDGE_TEST_KEY", max_tries=1)
        judge = Judge(settings(server, key_env="JUDGE_TEST_KEY"))
    everything = repr((good, refused.value, refused.value.__dict__, failed.value, vars(judge)))
    everything += "".join(file.read_text() for file in tmp_path.rglob("*.json")) + "".join(capfd.readouterr())
    assert secret not in everything


async def test_without_its_key_there_is_no_judge(monkeypatch):
    monkeypatch.delenv("JUDGE_TEST_KEY", raising=False)
    with pytest.raises(UserError, match=r"judge\.key_env.*must hold the API key"):
        Judge(JudgeSettings(url="http://127.0.0.1:9/v1", model="m", key_env="JUDGE_TEST_KEY"))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"url": "localhost:8000"}, "url of style must be the address of an API"),
        ({"model": ""}, "model of style must be given"),
        ({"max_tries": 0}, "max_tries of style must be at least 1"),
        ({"low": 3.0, "high": 1.0}, "low of style must be below high"),
    ],
)
def test_settings_made_in_python_are_checked(changes, rule):
    with pytest.raises(EnvironmentSetupError, match=rule):
        Judge(JudgeSettings(**({"url": "http://127.0.0.1:9/v1", "model": "m"} | changes)), name="style")


async def test_pairs_are_asked_in_both_orders_and_ranks_sum_to_half_their_number():
    def longer(body):
        _, first, second = body["messages"][0]["content"].split("|")
        return 10 if len(first) > len(second) else 4  # it likes the first place

    with served(longer) as server:
        judge = Judge(settings(server, pair_prompt="{question}|{first}|{second}"))
        assert await judge.prefer("q", "long", "s") == pytest.approx((1.0 + 0.6) / 2)
        assert await judge.prefer("q", "s", "long") == pytest.approx(0.2)
        assert await judge.prefer("q", "s", "s") == 0.5
        ranks = await judge.ranked("q", ["s", "long", "s"])
        assert ranks == [pytest.approx(0.35), pytest.approx(0.8), pytest.approx(0.35)]
        assert len(server.requests) == 8
        assert await judge.ranked("q", ["one"]) == [0.5]
        await judge.close()


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"url": "127.0.0.1:8000"}, "url", "http:// or https://"),
        ({"url": "http://me:secret@host/v1"}, "url", "no name, password or query"),
        ({"url": "http://host/v1?key=secret"}, "url", "no name, password or query"),
        ({"key_env": "sk-secret"}, "key_env", "not the key itself"),
        ({"model": ""}, "model", "must be given"),
        ({"low": 10.0}, "low", "must be below high"),
        ({"form": "pattern", "pattern": "("}, "pattern", "regular expression"),
        ({"form": "pattern", "pattern": "x"}, "pattern", "one group"),
        ({"prompt": "{question}"}, "prompt", "must show what is judged"),
        ({"prompt": "{answer} {reply}"}, "prompt", "nothing is known for: {reply}"),
        ({"pair_prompt": "{first}"}, "pair_prompt", "{second}"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_saying_secrets(changes, key, words):
    options = {"url": "http://127.0.0.1:8000/v1", "model": "m"} | changes
    problems = JudgeSettings(**options).problems()
    assert [(problem.key, words in problem.rule) for problem in problems] == [(key, True)]
    assert "secret" not in repr(problems)


def test_settings_without_a_judge_are_not_looked_at():
    assert JudgeSettings(prompt="").problems() == []
    assert JudgeSettings(url="http://h/v1", model="m", prompt='{"x": 1} {data.code}').problems() == []


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path):
    cache = Cache(tmp_path, 32)
    for number in range(100):
        cache.put(key_of({"n": number}), {"text": str(number)})
        for path in tmp_path.glob("??/*.json"):  # the clock of the disk is coarse
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
        assert cache.get(key_of({"n": 0})) == {"text": "0"}
    kept = [number for number in range(100) if cache.get(key_of({"n": number}))]
    assert 32 <= len(kept) <= 32 + 2
    assert kept == [0, *range(100 - len(kept) + 1, 100)]
    assert not list(tmp_path.glob("??/.*"))
