"""A program that sends nonsense is told so, and costs the other rollouts of its worker nothing."""

import asyncio
import json

import pytest

from headway.core.events import RolloutEnded, RolloutFailed
from headway.core.protocols import Outcome
from headway.environments.generation import GenerationLimits
from headway.gateway import reading, sessions
from headway.gateway.server import Gateway
from headway.gateway.sessions import Session
from headway.gateway.settings import GatewaySettings
from tests.unit.gateway_parts import asked, chat, saying
from tests.unit.host_stage import opened

SAID = {"role": "user", "content": "x"}


def calling(arguments):
    """Return a body whose history holds a call with these arguments."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [SAID, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "y"}]
    return json.dumps({"messages": talk}).encode()


NONSENSE = {
    "deep": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "rather deep": b'{"messages":' + b"[" * 300 + b"]" * 300 + b"}",
    "deep arguments": calling('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "rather deep arguments": calling('{"a":' + "[" * 300 + "]" * 300 + "}"),
    "half a character in arguments": calling('{"a": "\\ud800"}'),
    "half a character as bytes": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "another encoding": json.dumps({"messages": [SAID]}).encode("utf-16"),
    "true as a number": json.dumps({"messages": [SAID], "max_tokens": True}).encode(),
    "a limit behind null": json.dumps(
        {"messages": [SAID], "max_completion_tokens": None, "max_tokens": "a"}
    ).encode(),
    "stops without end": json.dumps({"messages": [SAID], "stop": ["q"] * 1000}).encode(),
    "a long stop": json.dumps({"messages": [SAID], "stop": "q" * 100_000}).encode(),
    "megabytes of text": json.dumps({"messages": [SAID | {"content": "a " * 1_000_000}]}).encode(),
}


async def exchanged(port, key, body, path="/v1/chat/completions"):
    """Send bytes as a body; return status and JSON of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Session: {key}\r\nConnection: close\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    head, _, data = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(data)


@pytest.fixture
def served(tmp_path, renderer):
    """Run a rollout whose endpoint is given to `work`."""

    async def run(engine, work, settings=None):
        async def rollout(chat_, sandbox):
            async with chat_.endpoint() as endpoint:
                return Outcome({"seen": await work(endpoint)})

        gateway = Gateway(settings, name=str(tmp_path))
        options = {"limits": GenerationLimits(64, 512), "server": gateway}
        async with opened(tmp_path, {"replica-0": engine}, renderer, rollout, **options) as stage:
            stage.start()
            event = await stage.until((RolloutEnded, RolloutFailed))
            assert isinstance(event, RolloutEnded), event
            return stage.payload(event.payload).outcome["seen"], event

    return run


async def test_nonsense_is_refused_by_name_and_nothing_of_it_is_recorded(served, renderer):
    async def work(endpoint):
        seen = {}
        for name, body in NONSENSE.items():
            seen[name] = await exchanged(endpoint.port, endpoint.key, body)
        prompt = json.dumps({"prompt": "a " * 1_000_000}).encode()
        seen["a long prompt"] = await exchanged(endpoint.port, endpoint.key, prompt, "/v1/completions")
        await chat(endpoint, ("user", "hi"))
        return seen

    seen, event = await served(saying(renderer, "one"), work)
    for name, (status, answer) in seen.items():
        assert (name, status) == (name, 400)
        assert answer["error"]["code"] not in ("internal_error", "")
    assert seen["megabytes of text"][1]["error"]["code"] == "context_length_exceeded"
    assert seen["a long prompt"][1]["error"]["code"] == "context_length_exceeded"
    assert event.num_turns == 1


async def test_null_as_the_newer_limit_leaves_the_older_one_in_force(served, renderer):
    body = {"messages": [SAID], "max_completion_tokens": None, "max_tokens": 2}
    (_, answer), _ = await served(
        saying(renderer, "abcdefgh"), lambda endpoint: asked(endpoint, "/v1/chat/completions", body)
    )
    assert answer["usage"]["completion_tokens"] == 2


async def test_who_sends_without_end_while_it_waits_is_cut_off(served, renderer):
    engine = saying(renderer, "one")

    async def work(endpoint):
        engine.hold.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        body = json.dumps({"messages": [SAID]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Session: {endpoint.key}\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sent = 0
        try:
            while sent < 64 << 20:
                writer.write(b"A" * (1 << 18))
                sent += 1 << 18
                await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        engine.hold.set()
        await chat(endpoint, ("user", "hi"))
        return sent

    sent, event = await served(engine, work, GatewaySettings(max_request_mb=1))
    assert sent < 64 << 20
    assert event.num_turns == 1


async def test_a_head_has_no_body_and_a_body_too_long_is_refused_before_it_comes(served, renderer):
    requests = ("HEAD /v1/models", ""), ("POST /v1/chat/completions", "Content-Length: 99999999\r\n")

    async def work(endpoint):
        seen = []
        for line, more in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            head = f"{line} HTTP/1.1\r\nHost: x\r\nX-Session: {endpoint.key}\r\nConnection: close\r\n"
            writer.write(f"{head}{more}\r\n".encode())
            async with asyncio.timeout(10):
                seen.append((await reader.read()).decode())
            writer.close()
        await chat(endpoint, ("user", "hi"))
        return seen

    seen, _ = await served(saying(renderer, "one"), work, GatewaySettings(max_request_mb=1))
    assert seen[0].startswith("HTTP/1.1 404")
    assert seen[0].endswith("\r\n\r\n")
    assert seen[1].startswith("HTTP/1.1 413")


async def test_more_messages_or_tools_than_tokens_are_a_full_context(served, renderer, monkeypatch):
    async def work(endpoint):
        tool = {"type": "function", "function": {"name": "f"}}
        told = []
        for body in ({"messages": [SAID] * 513}, {"messages": [SAID], "tools": [tool] * 513}):
            monkeypatch.setattr(reading, "messages", None)  # it is not even read
            told.append(await exchanged(endpoint.port, endpoint.key, json.dumps(body).encode()))
            monkeypatch.undo()
        await chat(endpoint, ("user", "go"))
        return [(status, answer["error"]["code"]) for status, answer in told]

    seen, _ = await served(saying(renderer, "ok"), work)
    assert seen == [[400, "context_length_exceeded"]] * 2


async def test_a_flood_of_one_rollout_asks_the_engine_for_so_many_at_once(served, renderer, monkeypatch):
    monkeypatch.setattr(sessions, "_MAX_AT_ONCE", 3)
    engine = saying(renderer, "ok")
    running, most = 0, 0
    generate = engine.generate

    async def counted(request):
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        try:
            async for chunk in generate(request):
                await asyncio.sleep(0)
                yield chunk
        finally:
            running -= 1

    engine.generate = counted

    async def work(endpoint):
        asking = [chat(endpoint, ("user", f"question {at}")) for at in range(20)]
        return [status for status, _ in await asyncio.gather(*asking)]

    seen, event = await served(engine, work)
    assert (seen, event.num_turns, most) == ([200] * 20, 20, 3)


def test_a_body_out_of_a_sandbox_is_no_longer_than_a_context_could_hold():
    class Rollout:
        max_context_tokens = 4096

    gateway = Gateway(GatewaySettings(max_request_mb=64))
    small, large = Session(Rollout(), "a"), Session(Rollout(), "b")
    large.completions.max_context_tokens = 10**6
    assert gateway._longest_bytes(small) == 4096 * 512
    assert (gateway._longest_bytes(large), gateway._longest_bytes(None)) == (64 << 20, 64 << 20)
