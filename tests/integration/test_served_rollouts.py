"""Rollouts that programs play through the gateway, and histories that branch, in real runs."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections import Counter

from headway.core.payload import read_payload
from tests.integration.conftest import LAST_DIGIT, wait_for

PLAY = """
import json as js
import urllib.request
from pathlib import Path

def ask(url, key, messages):
    data = js.dumps({{"model": "policy", "messages": messages}}).encode()
    request = urllib.request.Request(url + "/chat/completions", data, {{"Authorization": "Bearer " + key}})
    with urllib.request.urlopen(request, timeout=60) as response:
        return js.load(response)["choices"][0]["message"]["content"] or ""

question = {{"role": "user", "content": f"{{index % 10}}+1="}}
async with chat.endpoint() as at:
    with Path({keys!r}).open("a") as file:
        print(js.dumps([at.base_url, at.key]), file=file, flush=True)
    one = await asyncio.to_thread(ask, at.base_url, at.key, [question])
    history = [question, {{"role": "assistant", "content": one}}, {{"role": "user", "content": "?"}}]
    await asyncio.to_thread(ask, at.base_url, at.key, history)
    await asyncio.sleep({pause_s})
    compacted = [{{"role": "user", "content": f"so {{index % 10}}"}}]
    answer = await asyncio.to_thread(ask, at.base_url, at.key, compacted)
return Outcome({{"answer": answer}})
"""
ROOM = ("generator.max_context_tokens=256",)


def environment(bench, pause_s=0.0):
    return bench.environment(PLAY.format(keys=str(bench.folder / "keys"), pause_s=pause_s), score=LAST_DIGIT)


def sessions(bench):
    """Address and key of each session that was ever open."""
    path = bench.folder / "keys"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def status(url, key):
    """What a client is told that comes with this key."""
    data = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "?"}]}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", data, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0  # nobody listens yet


def each_branch_was_trained_once(bench):
    """A rollout counts once in its group; all of its sampled tokens are trained, each once."""
    ended = {event["rollout"]: event for event in bench.entries("RolloutEnded")}
    for signal_ in bench.entries("Signal"):
        names = [name for name, _ in signal_["rewards"]]
        assert len(set(names)) == len(names) == 4
    for step, rollouts in bench.trained().items():
        assert len(set(rollouts)) == len(rollouts)
        (done,) = [event for event in bench.entries("StepEnded") if event["step"] == step]
        assert done["num_trained_tokens"] == sum(ended[rollout]["num_tokens"] for rollout in rollouts)
    for event in ended.values():
        payload = read_payload(bench.run_dir / "payloads", event["payload"])
        first, second = payload.samples
        assert (event["num_turns"], len(first.turns), len(second.turns)) == (3, 2, 1)
        assert first.num_trainable + second.num_trainable == event["num_tokens"]


def test_a_history_that_branches_counts_once_in_its_group_and_each_branch_is_trained_once(bench):
    ended = bench.train(*environment(bench), *ROOM)
    assert ended.code == 0, ended.text
    assert bench.check()["steps"] == 3
    each_branch_was_trained_once(bench)
    assert {status(*session) for session in sessions(bench)} == {0}


def test_a_worker_that_is_killed_with_open_sessions_costs_their_attempts_only(bench):
    command = bench.start("train", bench.config, *environment(bench, pause_s=0.5), *ROOM, "stop.steps=8")
    command.until_step(1)
    num = len(sessions(bench))
    wait_for(lambda: len(sessions(bench)) > num, "a session that is open")
    lost = sessions(bench)[-1]
    os.kill(bench.worker(command, "environment0"), signal.SIGKILL)
    command.until("environment0 is started anew")
    wait_for(lambda: status(*lost) == 401 or command.process.poll() is not None, "the key to open nothing")
    assert command.process.poll() is None, command.ended().text
    ended = command.ended()
    assert ended.code == 0, ended.text
    report = bench.check()
    assert report["steps"] == 8
    failed = [note for note in bench.entries("AttemptFailed") if note["cause"] == "worker_lost"]
    assert failed
    assert {(note["owner"], note["retried"]) for note in failed} == {("infrastructure", True)}
    assert set(report["conservation.by_fate"]) <= {"trained", "stopped", "unused"}
    assert max(Counter(rollout for rows in bench.trained().values() for rollout in rows).values()) == 1
    each_branch_was_trained_once(bench)
