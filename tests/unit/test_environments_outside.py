"""Tools outside the sandbox: HTTP and MCP, their secrets, rates, retries and failures."""

import asyncio
import contextlib
import json
import socket
import sys
from pathlib import Path

import pytest

from headway.core.check import Mismatch
from headway.core.errors import ContextFullError, EnvironmentSetupError, ToolError
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"url": "https://me:hunter2@search.example/"},
            "url of the tool search must hold no name or password",
        ),
        ({"url": "https:///search"}, "url of the tool search must name a host"),
        ({"url": "search.example"}, "url of the tool search must be a URL"),
        ({"method": "post"}, 'method of the tool search must be "GET" or "POST"'),
        (
            {"limits": {"timeout": 5}},
            "limits of the tool search must be some of timeout_s, .*: timeout is not",
        ),
        ({"limits": {"tries": 0}}, "each within its bounds: tries is not"),
        ({"headers": {"x-name": "Bj\u00f6rn"}}, "headers of the tool search must be lines of ASCII"),
        ({"secrets": {"x-key": 5}}, "secrets of the tool search entry x-key must be a string"),
    ],
)
def test_settings_made_in_python_are_checked_and_a_password_is_not_repeated(change, words):
    given = {"name": "search", "url": "http://x", "parameters": PARAMETERS} | change
    with pytest.raises(EnvironmentSetupError, match=words) as refused:
        HttpTool(HttpToolSettings(**given))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("result", ["", "said"])
async def test_a_secret_that_comes_back_escaped_is_blotted_out(monkeypatch, result):
    monkeypatch.setenv("SEARCH_KEY", key := 'sk/very"secret&123')
    forms = json.dumps(key)[1:-1], json.dumps(key)[1:-1].replace("/", r"\/"), "sk%2Fvery%22secret%26123"
    coded = "".join(f"\\u{ord(char):04x}" for char in key) if result else ""
    async with Service((200, {}, f'{{"said": "{" ".join([*forms, coded])}"}}')) as service:
        told = await http(service.url, result=result, secrets={"x-key": "SEARCH_KEY"}).run({"query": "x"})
    assert told.count("[secret]") == 3 + bool(result)
    assert "very" not in told


@pytest.mark.parametrize("key", ["two\nlines-of-a-key", "\u201cquoted-key\u201d"])
async def test_a_secret_that_no_header_can_hold_is_not_repeated(monkeypatch, key):
    monkeypatch.setenv("SEARCH_KEY", key)
    tool = http("http://127.0.0.1:9/", secrets={"x-key": "SEARCH_KEY"})
    with pytest.raises(ToolError, match="sends SEARCH_KEY as a header, so it must be one line") as failed:
        await tool.run({"query": "x"})
    assert "key" not in str(failed.value).replace("SEARCH_KEY", "").replace("the key alone", "")
    assert Secrets({"x": "SEARCH_KEY"}, "it", in_headers=False).values() == {"x": key}


async def test_the_query_of_the_address_stays_and_no_cookie_is_kept():
    sets = {"set-cookie": "session=of-another-rollout; Path=/"}
    async with Service((200, sets, "a"), (200, sets, "b")) as service:
        tool = http(f"{service.url}?format=json")
        assert await tool.run({"query": "x"}) == "a"
        assert await tool.run({"query": "y"}) == "b"
        assert "/search?format=json&query=x " in service.asked[0][0]
        assert "cookie" not in service.asked[1][0].lower()


@pytest.mark.parametrize("value", ["\ud800", float("inf"), "x" * 70_000])
async def test_arguments_that_no_request_can_hold_are_told_to_the_policy(value):
    with pytest.raises(ToolRefusal):
        await http("http://127.0.0.1:1/").run({"query": value})
    if not isinstance(value, str) or len(value) == 1:
        with pytest.raises(ToolRefusal, match="must be numbers and texts of JSON"):
            await http("http://127.0.0.1:1/", method="POST").run({"query": value})


async def test_an_endless_and_a_dripping_answer_end(monkeypatch):
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 X\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * size)
                await writer.drain()
                await asyncio.sleep(pause_s)
        writer.close()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        size, pause_s = 1 << 20, 0.0
        with pytest.raises(ToolRefusal, match="found more than 4194304 bytes"):
            await http(url).run({"query": "x"})
        size, pause_s = 1, 0.01
        with pytest.raises(ToolError, match=r"no answer within 0\.3 s"):
            await http(url, OutsideLimits(timeout_s=0.3, tries=1)).run({"query": "x"})


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


def hostile(way, monkeypatch, timeout_s=20.0):
    monkeypatch.setenv("MY_SHELF_KEY", KEY)
    command = sys.executable, str(STANDINS / "mcp_hostile.py"), way
    settings = McpSettings(name="shelf", command=command, secrets={"SHELF_KEY": "MY_SHELF_KEY"})
    return McpServer(settings, OutsideLimits(timeout_s=timeout_s, tries=1, backoff_s=0.0))


@pytest.mark.parametrize("way", ["garbage-first", "garbage", "ids"])
async def test_what_a_server_says_beside_its_answer_is_passed_over_and_logged_nowhere(
    mcp, way, monkeypatch, caplog
):
    async with hostile(way, monkeypatch).open() as (look,):
        assert await look.run({}) == "fine"
    assert not caplog.records


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("error", r"shelf failed: MCPError: bad key \[secret\]$"),
        ("content", "what it said is not as MCP has it: content: Input should be a valid list"),
        ("dies", "shelf failed: MCPError: Connection closed"),
        ("twice", "shelf has two tools look"),
        ("schema", "what it said is not as MCP has it: tools.0.inputSchema"),
        ("tools-error", r"shelf failed: MCPError: no tools for \[secret\]$"),
        ("version", "what it said is not as MCP has it: serverInfo: Field required"),
        ("many", "shelf has more than 1000 tools"),
    ],
)
async def test_a_server_that_breaks_is_a_failure_of_the_infrastructure(mcp, way, words, monkeypatch):
    async def rollout():
        async with hostile(way, monkeypatch).open() as (look,):
            await look.run({})

    with pytest.raises(ToolError, match=words) as failed:
        await rollout()
    assert KEY not in str(failed.value)


@pytest.mark.parametrize("way", ["hangs", "pages", "silent", "no-result", "half"])
async def test_a_server_that_never_answers_is_given_up(mcp, way, monkeypatch):
    async def rollout():
        async with hostile(way, monkeypatch, 1.5).open() as (look,):
            await look.run({})

    with pytest.raises(ToolError, match=r"shelf failed: TimeoutError: no answer within 1\.5 s"):
        await rollout()


async def test_a_description_that_tells_the_secret_is_blotted_out(mcp, monkeypatch):
    async with hostile("tells", monkeypatch).open() as (look,):
        assert look.spec.description == "With [secret]."
        assert look.spec.parameters["properties"]["a"]["description"] == "not [secret]"
    async with hostile("escaped", monkeypatch).open() as (look,):
        assert await look.run({}) == '{"key": "[secret]", "half": "\\ud800"}'


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
