"""Plain functions as tools: their schemas, what is told of wrong calls, and the loop."""

import asyncio
import json
import threading
import typing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import pytest

from headway.core import off_loop
from headway.core.errors import ContextFullError, EnvironmentFault, ToolError
from headway.core.protocols import Reply
from headway.core.records import Message, ToolCall
from headway.environments.faults import owner_and_cause
from headway.environments.tools import FunctionTool, ToolRefusal, run_tools, tool, tool_of


@dataclass(frozen=True)
class Place:
    city: str
    floor: int = 0

    def __post_init__(self):
        if self.floor < 0:
            raise ValueError("floor must not be below 0")


def book(
    who: str,
    days: int,
    where: Place,
    *,
    rate: float = 1.5,
    kind: Literal["bed", "room"] = "bed",
    notes: list[str] | None = None,
    extra: dict[str, int] | None = None,
    loud: Annotated[bool, "Whether to shout."] = False,
    anything: Any = None,
) -> str:
    """Book a place to
    sleep.

    Args:
        who: The guest's name,
            as on the passport.
        days (int): How many.

    Returns:
        days: not this.
    """
    return f"{who} {days} {where} {rate} {kind} {notes} {extra} {loud}"


def test_a_schema_comes_from_signature_and_docstring():
    spec = tool_of(book)
    assert (spec.name, spec.description) == ("book", "Book a place to sleep.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "who": {"type": "string", "description": "The guest's name, as on the passport."},
            "days": {"type": "integer", "description": "How many."},
            "where": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "floor": {"type": "integer"}},
                "required": ["city"],
            },
            "rate": {"type": "number", "default": 1.5},
            "kind": {"type": "string", "enum": ["bed", "room"], "default": "bed"},
            "notes": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "extra": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "integer"}},
                    {"type": "null"},
                ]
            },
            "loud": {"type": "boolean", "description": "Whether to shout.", "default": False},
            "anything": {},
        },
        "required": ["who", "days", "where"],
    }


GIVEN = {"who": "Ida", "days": 2, "where": {"city": "Varn"}}


async def test_arguments_become_what_the_function_takes():
    said = await FunctionTool(book).run({**GIVEN, "rate": 2, "notes": ["a"], "days": 3.0})
    assert said == "Ida 3 Place(city='Varn', floor=0) 2.0 bed ['a'] None False"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"days": "2"}, "days of book must be an integer, not '2'"),
        ({"days": True}, "days of book must be an integer, not True"),
        ({"days": 1.5}, "days of book must be an integer, not 1.5"),
        ({"loud": 1}, "loud of book must be true or false, not 1"),
        ({"kind": "tent"}, "kind of book must be one of 'bed', 'room', not 'tent'"),
        ({"where": "Varn"}, "where of book must be an object, not 'Varn'"),
        ({"where": {}}, "where of book needs city"),
        ({"where": {"city": "V", "floor": -1}}, "where of book: floor must not be below 0"),
        ({"where": {"town": "V"}}, "where of book has no 'town'. It takes city, floor."),
        ({"notes": [1]}, "entry 0 of notes of book must be a string, not 1"),
        ({"extra": {"a": "b"}}, "a of extra of book must be an integer, not 'b'"),
        ({"dayz": 2}, "book has no 'dayz'. Did you mean days?"),
        ({"rate": 10**400}, "rate of book must be a number below 1e308"),
        ({"rate": "x" * 100}, "rate of book must be a number, not '" + "x" * 59 + "..."),
    ],
)
async def test_what_does_not_fit_is_told_in_words_for_the_model(change, words):
    with pytest.raises(ToolRefusal) as refused:
        await FunctionTool(book).run({**GIVEN, **change})
    assert str(refused.value) == words


async def test_a_missing_argument_is_told():
    with pytest.raises(ToolRefusal, match="book needs days, where"):
        await FunctionTool(book).run({"who": "Ida"})


def starred(*words: str): ...
def untyped(word): ...
def odd(word: set[str]): ...
def only_by_place(word: str, /): ...


def unreadable(word: "list["): ...  # noqa: F722


@dataclass
class Nest:
    inside: "list[Nest]"


def endless(nest: Nest): ...


class Callable_:
    def __call__(self, word: str): ...


NO_TOOLS = [starred, untyped, odd, only_by_place, unreadable, endless, Callable_(), partial(odd), lambda: 1]


@pytest.mark.parametrize("function", NO_TOOLS)
def test_a_function_that_is_no_tool_is_refused(function):
    with pytest.raises(EnvironmentFault):
        tool_of(function)


async def test_bare_containers_are_schemas_and_a_number_beyond_floats_is_an_integer():
    def counted(many: typing.List, by: typing.Dict, number: int) -> int:  # noqa: UP006
        return len(many) + len(by) + number % 2

    found = FunctionTool(counted)
    assert {name: one["type"] for name, one in found.spec.parameters["properties"].items()} == {
        "many": "array",
        "by": "object",
        "number": "integer",
    }
    assert await found.run({"many": [1], "by": {"a": 1}, "number": 10**400 + 1}) == "3"


async def test_threads_of_hung_tools_are_bounded(monkeypatch):
    monkeypatch.setattr(off_loop, "MAX_LEFT", 2)
    let_go = threading.Event()

    def hangs():
        let_go.wait(20)

    try:
        for _ in range(2):
            with pytest.raises(ToolRefusal, match="took longer"):
                await FunctionTool(hangs, timeout_s=0.01).run({})
        with pytest.raises(EnvironmentFault, match="2 calls"):
            await FunctionTool(hangs, timeout_s=0.01).run({})
    finally:
        let_go.set()


async def test_a_plain_function_runs_off_the_event_loop_and_others_go_on():
    inside, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> str:
        loop.call_soon_threadsafe(inside.set)
        go.wait(10)
        return threading.current_thread().name

    async with asyncio.TaskGroup() as group:
        call = group.create_task(FunctionTool(wait).run({}))
        await inside.wait()
        go.set()
    assert call.result() == "headway tool wait"


async def test_what_takes_too_long_is_told_and_a_functions_own_timeout_is_raised():
    release = threading.Event()

    @tool(timeout_s=0.05)
    def slow() -> str:
        release.wait(10)
        return ""

    async def own() -> str:
        raise TimeoutError("mine")

    try:
        with pytest.raises(ToolRefusal, match=r"slow took longer than 0\.05 s"):
            await slow.run({})
    finally:
        release.set()
    with pytest.raises(TimeoutError, match="mine"):
        await FunctionTool(own).run({})


async def test_results_are_text_or_json_and_lose_their_middle_when_long():
    @tool(max_chars=10)
    def long() -> str:
        return "0123456789abcdef"

    def nothing() -> None: ...

    def place() -> Place:
        return Place("Værn")

    def bad() -> set[int]:
        return {1}

    assert await long.run({}) == "01234\n[... 6 characters left out ...]\nbcdef"
    assert await FunctionTool(nothing).run({}) == "Done."
    assert await FunctionTool(place).run({}) == '{"city": "Værn", "floor": 0}'
    with pytest.raises(EnvironmentFault, match="text or what JSON has"):
        await FunctionTool(bad).run({})


# --- the loop


class Script:
    """A chat that answers what it is told: text, (name, arguments) calls, a Reply or an error."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.said = []

    async def say(self, messages, *, max_tokens=None, tools=()):
        self.said.append((list(messages), tuple(spec.name for spec in tools)))
        answer = self._answers.pop(0)
        if isinstance(answer, (Reply, Exception)):
            if isinstance(answer, Exception):
                raise answer
            return answer
        calls = ()
        if not isinstance(answer, str):
            calls = tuple(
                ToolCall(f"c{at}", name, json.dumps(given)) for at, (name, given) in enumerate(answer)
            )
        text = answer if isinstance(answer, str) else ""
        return Reply(text, "stop", 1, 100, Message("assistant", text, tool_calls=calls))


async def double(n: int) -> int:
    """Double."""
    if n < 0:
        raise ToolRefusal("n is below 0")
    return 2 * n


ASK = [Message("user", "?")]


async def test_calls_are_run_and_answered_until_there_is_none():
    chat = Script([("double", {"n": 2}), ("double", {"n": -1})], [("dubble", {})], "4")
    talk = await run_tools(chat, ASK, [double])
    assert (talk.ended, talk.answer, talk.num_turns, talk.num_calls, talk.num_refused) == (
        "answer",
        "4",
        3,
        3,
        2,
    )
    assert chat.said == [
        (ASK, ("double",)),
        (
            [
                Message("tool", "4", tool_call_id="c0", name="double"),
                Message("tool", "Error: n is below 0", tool_call_id="c1", name="double"),
            ],
            ("double",),
        ),
        (
            [
                Message(
                    "tool",
                    "Error: there is no tool dubble. Did you mean double?",
                    tool_call_id="c0",
                    name="dubble",
                )
            ],
            ("double",),
        ),
    ]


async def test_a_malformed_call_is_told_why():
    bad = Reply("x", "stop", 1, 9, Message("assistant", "x"), "it is not valid JSON")
    chat = Script(bad, "done")
    talk = await run_tools(chat, ASK, [double])
    assert chat.said[1][0] == [Message("tool", "Error: it is not valid JSON.")]
    assert (talk.answer, talk.num_calls, talk.num_refused) == ("done", 0, 1)


async def test_the_loop_ends_by_turns_length_and_a_full_context():
    call = [("double", {"n": 1})]
    assert (await run_tools(Script(call, call), ASK, [double], max_turns=2)).ended == "turns"
    cut = Reply("x", "length", 1, 0, Message("assistant", "x"))
    talk = await run_tools(Script(call, cut), ASK, [double])
    assert (talk.ended, talk.answer) == ("length", "")
    talk = await run_tools(Script(call, ContextFullError("no room")), ASK, [double])
    assert (talk.ended, talk.num_turns, talk.num_calls) == ("full", 1, 1)
    with pytest.raises(ContextFullError):
        await run_tools(Script(ContextFullError("no room")), ASK, [double])


async def test_too_many_calls_of_one_answer_are_not_run():
    chat = Script([("double", {"n": 1})] * 18, "x")
    talk = await run_tools(chat, ASK, [double])
    assert talk.num_calls == 16
    assert [m.content for m in chat.said[1][0]][15:] == ["2"] + [
        "Error: only 16 calls of an answer are run."
    ] * 2


async def test_a_failure_of_the_infrastructure_ends_the_rollout_and_tells_the_model_nothing():
    def search(query: str) -> str:
        raise ToolError("the index is down")

    chat = Script([("search", {"query": "x"})])
    with pytest.raises(ToolError) as raised:
        await run_tools(chat, ASK, [search])
    assert owner_and_cause(raised.value) == ("infrastructure", "tool")
    assert len(chat.said) == 1


async def test_what_a_function_raises_by_mistake_is_the_environments_failure():
    def broken() -> str:
        raise StopIteration

    def worse() -> str:
        raise SystemExit(3)

    for function in (broken, worse):
        with pytest.raises(EnvironmentFault, match=f"tool {function.__name__} raised"):
            await run_tools(Script([(function.__name__, {})]), ASK, [function])


async def test_two_tools_of_one_name_are_refused():
    with pytest.raises(EnvironmentFault, match="different names"):
        await run_tools(Script(), ASK, [double, double])
