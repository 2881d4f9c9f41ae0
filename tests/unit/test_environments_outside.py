"""Tools outside the sandbox: HTTP and MCP, their secrets, rates, retries and failures."""

import asyncio
import json
import socket
import sys
from pathlib import Path

import pytest

from headway.core.check import Mismatch
from headway.core.errors import ContextFullError, ToolError
from headway.environments.arguments import read_arguments
from headway.environments.http_tool import HttpTool, HttpToolSettings
from headway.environments.mcp_tools import McpServer, McpSettings
from headway.environments.outside import Cache, OutsideLimits, Pace, Secrets
from headway.environments.tools import ToolRefusal

KEY = "sk-very-secret-123"
PARAMETERS = {"query": {"type": "string"}, "k": {"type": "integer"}}


class Service:
    """Answers each request with the next (status, headers, body); keeps what was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/search"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(h.split(":")[1]) for h in head.splitlines() if h.lower().startswith("content-length")), 0
        )
        body = (await reader.readexactly(length)).decode()
        self.asked.append((head, body))
        answer = self.answers.pop(0) if self.answers else (200, {}, "late")
        if answer is None:  # says nothing
            await asyncio.sleep(5)
            writer.close()
            return
        status, headers, text = answer
        lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in headers.items()), "connection: close"]
        data = text.encode()
        writer.write("\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode() + data)
        await writer.drain()
        writer.close()


def http(url, limits=None, **settings):
    given = {"name": "search", "url": url, "parameters": PARAMETERS, "required": ("query",)} | settings
    return HttpTool(HttpToolSettings(**given), limits or OutsideLimits(backoff_s=0.0))


async def test_a_get_puts_arguments_into_the_query_and_tells_a_part_of_the_answer():
    async with Service((200, {}, json.dumps({"hits": [{"text": "Vær"}]}))) as service:
        tool = http(service.url, result="hits.0.text", description="Search.")
        assert await tool.run({"query": "a b&c", "k": 2}) == "Vær"
        assert (
            "GET /search?query=a+b%26c&k=2 " in service.asked[0][0]
            or "query=a%20b%26c&k=2 " in service.asked[0][0]
        )
    assert tool.spec.parameters == {"type": "object", "properties": PARAMETERS, "required": ["query"]}


async def test_a_post_sends_json_and_the_secret_reaches_the_service_alone(monkeypatch):
    monkeypatch.setenv("SEARCH_KEY", KEY)
    async with Service(
        (200, {}, f"your key is {KEY}"), (404, {}, f"no {KEY}"), (403, {}, f"bad {KEY}")
    ) as service:
        tool = http(service.url, method="POST", secrets={"Authorization": "Bearer SEARCH_KEY"})
        assert await tool.run({"query": "x"}) == "your key is [secret]"
        head, body = service.asked[0]
        assert f"authorization: Bearer {KEY}".lower() in head.lower()
        assert json.loads(body) == {"query": "x"}
        with pytest.raises(ToolRefusal) as refused:
            await tool.run({"query": "y"})
        with pytest.raises(ToolError) as failed:
            await tool.run({"query": "z"})
    assert str(refused.value) == "search answered 404: no [secret]"
    assert "HTTP 403: bad [secret]" in str(failed.value)
    assert KEY not in repr(failed.value.__dict__) + repr(tool.__dict__) + repr(tool.spec)


async def test_a_secret_that_is_not_there_is_an_error_that_names_the_variable(monkeypatch):
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    tool = http("http://127.0.0.1:9/", secrets={"x-key": "SEARCH_KEY"})
    with pytest.raises(ToolError, match="the tool search needs the environment variable SEARCH_KEY"):
        await tool.run({"query": "x"})


async def test_what_may_pass_is_tried_again_and_then_fails_the_rollout():
    async with Service(
        (503, {}, "busy"), (429, {"retry-after": "0"}, "slow down"), (200, {}, "found")
    ) as service:
        assert await http(service.url).run({"query": "x"}) == "found"
        assert len(service.asked) == 3
    async with Service(*[(500, {}, "broken")] * 3) as service:
        with pytest.raises(ToolError, match="search gave no answer after 3 tries: HTTP 500: broken"):
            await http(service.url).run({"query": "x"})
    with pytest.raises(ToolError, match="after 2 tries: ConnectError"):
        await http("http://127.0.0.1:1/", OutsideLimits(tries=2, backoff_s=0)).run({"query": "x"})


async def test_silence_is_a_failure_and_a_redirect_is_not_followed():
    async with Service(None) as service:
        tool = http(service.url, OutsideLimits(timeout_s=0.1, tries=1))
        with pytest.raises(ToolError, match=r"no answer within 0\.1 s"):
            await tool.run({"query": "x"})
    async with Service((302, {"location": "http://127.0.0.1:1/"}, "")) as service:
        with pytest.raises(ToolError, match="HTTP 302"):
            await http(service.url).run({"query": "x"})


async def test_wrong_arguments_ask_nobody():
    tool = http("http://127.0.0.1:1/")
    with pytest.raises(ToolRefusal, match="search has no 'q'"):
        await tool.run({"q": "x"})
    with pytest.raises(ToolRefusal, match="search needs query"):
        await tool.run({"k": 1})


async def test_equal_calls_are_answered_from_the_cache():
    async with Service((200, {}, "x" * 50), (200, {}, "other")) as service:
        tool = http(service.url, OutsideLimits(max_chars=16))
        first = await tool.run({"query": "a", "k": 1})
        assert first == "xxxxxxxx\n[... 34 characters left out ...]\nxxxxxxxx"
        assert await tool.run({"k": 1, "query": "a"}) == first
        assert await tool.run({"query": "b"}) == "other"
        assert (len(service.asked), tool.cache.num_hits) == (2, 1)


async def test_a_post_is_made_each_time_unless_it_only_reads():
    async with Service((200, {}, "a"), (200, {}, "b"), (200, {}, "c")) as service:
        tool = http(service.url, method="POST")
        assert [await tool.run({"query": "x"}) for _ in range(2)] == ["a", "b"]
        reads = http(service.url, method="POST", only_reads=True)
        assert [await reads.run({"query": "x"}) for _ in range(2)] == ["c", "c"]
    assert len(service.asked) == 3


async def test_an_answer_without_the_part_that_is_told_is_a_failure():
    async with Service((200, {}, "[1]"), (200, {}, "no JSON")) as service:
        tool = http(service.url, result="hits.0")
        for query in "ab":
            with pytest.raises(ToolError, match=r"must have hits\.0"):
                await tool.run({"query": query})


def test_the_cache_forgets_the_oldest():
    cache = Cache(2)
    for name in "abac":
        cache.get(name)
        cache.put(name, name)
    assert [cache.get(name) for name in "abc"] == ["a", None, "c"]
    none = Cache(0)
    none.put("a", "b")
    assert none.get("a") is None


async def test_a_rate_spaces_calls(monkeypatch):
    now, slept = [100.0], []

    async def sleep(seconds):
        slept.append(round(seconds, 6))

    monkeypatch.setattr("headway.environments.outside.stopwatch", lambda: now[0])
    monkeypatch.setattr("headway.environments.outside.asyncio.sleep", sleep)
    pace = Pace(4.0)
    for _ in range(3):
        await pace.wait()
    now[0] += 10
    await pace.wait()
    assert slept == [0.25, 0.5]


def test_secrets_are_blotted_out_and_short_ones_are_left(monkeypatch):
    monkeypatch.setenv("LONG", "abcdef")
    monkeypatch.setenv("SHORT", "ab")
    secrets = Secrets({"a": "LONG", "b": "Token SHORT"}, "it")
    assert secrets.values() == {"a": "abcdef", "b": "Token ab"}
    assert secrets.hidden("abcdef ab") == "[secret] ab"


def test_settings_say_what_is_wrong():
    assert read_arguments("x", HttpToolSettings, {"name": "a", "url": "ftp://x"})[1][0].key == "url"
    good = {"name": "a", "url": "http://x", "required": ["q"]}
    assert read_arguments("x", HttpToolSettings, good)[1][0].rule == "must be among parameters"
    both = read_arguments("x", McpSettings, {"name": "a", "command": ["b"], "url": "http://x"})[1]
    assert both[0].rule == "must be given, or url, and not both"
    assert Mismatch


# --- MCP

STANDINS = Path(__file__).parents[1] / "standins"


def stdio(**settings):
    limits = OutsideLimits(timeout_s=20.0, backoff_s=0.0, tries=settings.pop("tries", 1))
    given = {"name": "shelf", "command": (sys.executable, str(STANDINS / "mcp_stdio.py"))} | settings
    return McpServer(McpSettings(**given), limits)


@pytest.fixture
def mcp():
    return pytest.importorskip("mcp", reason="the extra mcp is not installed")


async def test_a_stdio_server_gives_its_tools_to_one_rollout(mcp, monkeypatch):
    monkeypatch.setenv("MY_SHELF_KEY", KEY)
    server = stdio(secrets={"SHELF_KEY": "MY_SHELF_KEY"})
    async with server.open() as (look, put):
        assert (look.spec.name, look.spec.description) == ("look", "Look at a place.")
        assert look.spec.parameters["properties"]["place"]["type"] == "string"
        assert await look.run({"place": "here"}) == "here: call 1 with [secret]"
        assert await look.run({"place": "here"}) == "here: call 1 with [secret]"  # it only reads: the cache's
        assert await put.run({"thing": "cup"}) == "cup: call 2 with [secret]\n[image left out]"
        assert await put.run({"thing": "cup"}) == "cup: call 3 with [secret]\n[image left out]"
        with pytest.raises(ToolRefusal, match="no fire here"):
            await put.run({"thing": "fire"})
        with pytest.raises(ToolRefusal, match="a thing is needed"):
            await put.run({"nothing": 1})
        with pytest.raises(ToolError, match="the MCP server shelf failed"):
            await put.run({"thing": "crash"})


async def test_what_is_raised_within_a_session_comes_out_as_it_is(mcp):
    server = stdio(tools=("put",))

    async def rollout():
        async with server.open() as tools:
            assert [tool.spec.name for tool in tools] == ["put"]
            raise ContextFullError("no room")

    with pytest.raises(ContextFullError, match="no room"):
        await rollout()


async def test_a_server_that_does_not_start_or_lacks_a_tool_is_a_failure(mcp):
    with pytest.raises(ToolError, match="the MCP server shelf failed"):
        async with stdio(command=("no-such-program-here",), tries=2).open():
            raise AssertionError("it opened")
    with pytest.raises(ToolError, match="has no tool throw"):
        async with stdio(tools=("throw",)).open():
            raise AssertionError("it opened")


@pytest.mark.slow
async def test_a_real_server_over_http(mcp, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(STANDINS / "mcp_server.py"), str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        limits = OutsideLimits(timeout_s=20.0, tries=20, backoff_s=0.2)
        server = McpServer(McpSettings(name="shelf", url=f"http://127.0.0.1:{port}/mcp"), limits)
        async with server.open() as (look,):
            assert await look.run({"place": "here"}) == "here: nothing"
    finally:
        child.kill()
        await child.wait()


async def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(Exception, match=r"headway\[mcp\]"):
        async with stdio().open():
            raise AssertionError("it opened")
