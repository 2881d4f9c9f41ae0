"""Programs speak to their rollout over the OpenAI API; what they were told is what is trained."""

import asyncio
import contextlib
import json
import sys
from array import array

import pytest

from headway.core.events import RolloutEnded, RolloutFailed, RolloutParked, TurnEnded
from headway.core.protocols import Completion, Endpoint, Outcome
from headway.core.records import Message
from headway.environments.generation import GenerationLimits
from headway.gateway.server import Gateway
from headway.gateway.sessions import Session
from headway.gateway.settings import GatewaySettings
from tests.unit.gateway_parts import asked, chat, saying, sent
from tests.unit.host_stage import opened

LIMITS = GenerationLimits(64, 512)


@pytest.fixture
def served(tmp_path, renderer):
    """Open a stage whose rollout gets an endpoint."""

    def open_stage(engine, work, settings=None, **options):
        async def rollout(chat_, sandbox):
            async with chat_.endpoint() as endpoint:
                return Outcome({"seen": await work(endpoint)})

        gateway = Gateway(settings, name=str(tmp_path))
        options = {"limits": LIMITS} | options
        return opened(tmp_path, {"replica-0": engine}, renderer, rollout, server=gateway, **options)

    return open_stage


async def ended(stage):
    stage.start()
    event = await stage.until((RolloutEnded, RolloutFailed))
    assert isinstance(event, RolloutEnded), event
    return stage.payload(event.payload), event


async def started(code, *words, **env):
    """Start a program of this interpreter whose output is read."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *words, stdout=asyncio.subprocess.PIPE,
        env=env | {"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip


CLIENT = """
import openai, sys
client = openai.OpenAI()
messages = [{"role": "user", "content": "one"}]
for text in ("two", "three"):
    answer = client.chat.completions.create(model="m", messages=messages)
    messages += [answer.choices[0].message, {"role": "user", "content": text}]
stream = client.chat.completions.create(model="m", messages=messages, stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
print(client.models.list().data[0].max_model_len)
"""


async def test_an_unmodified_openai_client_drives_a_rollout_that_is_trained(served, renderer):
    pytest.importorskip("openai")

    async def work(endpoint):
        env = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.key}
        program = await started(CLIENT, **env)
        out, _ = await program.communicate()
        assert program.returncode == 0
        return out.decode().split()

    async with served(saying(renderer, "first", "second", "third"), work) as stage:
        payload, event = await ended(stage)
    assert payload.outcome["seen"] == ["third", "512"]
    assert event.num_turns == 3
    (sample,) = payload.samples
    parts = ["<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n", "first<|im_end|>"]
    parts += ["\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n", "second<|im_end|>"]
    parts += ["\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n", "third<|im_end|>"]
    lengths = [len(renderer.encode(part)) for part in parts]
    assert renderer.decode(sample.token_ids, skip_special=False) == "".join(parts)
    assert list(sample.trainable) == [at % 2 for at, length in enumerate(lengths) for _ in range(length)]


async def test_every_form_of_the_api_tells_the_ids_that_were_sampled(served, renderer):
    async def work(endpoint):
        said = await chat(endpoint, ("user", "hi"), return_token_ids=True, logprobs=True)
        ids = said[1]["prompt_token_ids"] + said[1]["choices"][0]["token_ids"]
        more = renderer.encode("\nx")
        raw = {"token_ids": ids + list(more), "sampling_params": {"max_tokens": 3, "logprobs": 1}}
        return [
            said,
            await asked(endpoint, "/inference/v1/generate", raw),
            await asked(endpoint, "/v1/completions", {"prompt": "abc", "logprobs": 1, "max_tokens": 2}),
            await asked(endpoint, "/v1/models"),
        ]

    async with served(saying(renderer, "one", "two", "three"), work) as stage:
        payload, event = await ended(stage)
    (_, said), (_, generated), (_, text), (_, models) = payload.outcome["seen"]
    choice = said["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "one"}
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == list(renderer.encode("one<|im_end|>"))
    assert [row["token"] for row in choice["logprobs"]["content"]] == ["o", "n", "e", "<|im_end|>"]
    assert [row["logprob"] for row in choice["logprobs"]["content"]] == [-0.5] * 4
    prompt = len(renderer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    assert said["usage"] == {"prompt_tokens": prompt, "completion_tokens": 4, "total_tokens": prompt + 4}
    assert generated["choices"][0]["token_ids"] == list(renderer.encode("two"))
    assert generated["choices"][0]["finish_reason"] == "length"
    assert text["choices"][0]["text"] == "th"
    assert text["choices"][0]["logprobs"]["tokens"] == ["t", "h"]
    assert models["data"][0]["max_model_len"] == 512
    # The ids went on from the chat's answer; the text began a branch of its own.
    first, second = payload.samples
    assert list(first.token_ids[: prompt + 4]) == said["prompt_token_ids"] + choice["token_ids"]
    assert (first.num_trainable, second.num_trainable) == (7, 2)
    assert event.num_turns == 3


async def test_a_stream_tells_what_a_whole_answer_tells(served, renderer):
    async def work(endpoint):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        body |= {"stream_options": {"include_usage": True}, "return_token_ids": True}
        _, headers, data = await asyncio.to_thread(sent, endpoint, "/v1/chat/completions", body)
        return [headers["content-type"], data.decode()]

    async with served(saying(renderer, "one two"), work) as stage:
        payload, _ = await ended(stage)
    kind, text = payload.outcome["seen"]
    assert kind == "text/event-stream"
    *events, done = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    assert done == "[DONE]"
    parts = [json.loads(event) for event in events]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    deltas = [part["choices"][0]["delta"] for part in parts if part["choices"]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "one two"}, {}]
    assert parts[1]["choices"][0]["token_ids"] == list(renderer.encode("one two<|im_end|>"))
    assert parts[-1]["usage"]["completion_tokens"] == 8


async def test_a_client_that_calls_tools_goes_on_from_what_was_sampled(served, renderer):
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def work(endpoint):
        _, first = await chat(endpoint, ("user", "hi"), tools=tools)
        said = first["choices"][0]["message"]
        rewritten = {**said["tool_calls"][0]["function"], "arguments": '{"at":1}'}  # the same, written anew
        said["tool_calls"][0]["function"] = rewritten
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "seen"}
        _, second = await chat(endpoint, ("user", "hi"), said, result, tools=tools)
        return [first, second["choices"][0]["message"]["content"]]

    async with served(saying(renderer, call, "fine"), work, limits=GenerationLimits(128, 2048)) as stage:
        payload, _ = await ended(stage)
    first, content = payload.outcome["seen"]
    assert content == "fine"
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert first["choices"][0]["message"]["content"] is None
    assert first["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    (sample,) = payload.samples
    assert renderer.encode(call + "<|im_end|>").tobytes() in sample.token_ids.tobytes()


USER = {"role": "user", "content": "x"}
WRONG = [
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "robot", "content": ""}]}, 400, "messages[0].role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{}]}]}, 400, "messages[0].content[0]"),  # noqa: E501
    ("/v1/chat/completions", {"messages": [USER], "n": 2}, 400, "n"),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "x"}]}, 400, None),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 600}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, 400, None),
    ("/inference/v1/generate", {"token_ids": ["a"]}, 400, "token_ids"),
    ("/v1/embeddings", {"input": "x"}, 404, None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "param"), WRONG)
async def test_what_cannot_be_answered_is_refused_in_the_form_of_the_api(
    served, renderer, path, body, status, param
):
    async def work(endpoint):
        found = await asked(endpoint, path, body)
        await chat(endpoint, ("user", "hi"))
        return found

    async with served(saying(renderer, "one"), work) as stage:
        payload, event = await ended(stage)
    got, answer = payload.outcome["seen"]
    assert got == status
    assert answer["error"]["param"] == param
    assert answer["error"]["message"]
    assert answer["error"]["code"] not in ("internal_error", "")
    assert event.num_turns == 1


async def test_a_full_context_is_named_so_that_clients_know_it(served, renderer):
    async def work(endpoint):
        found = await chat(endpoint, ("user", "x" * 600))
        await chat(endpoint, ("user", "hi"))
        return found

    async with served(saying(renderer, "one"), work) as stage:
        payload, _ = await ended(stage)
    error = payload.outcome["seen"][1]["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 512 tokens")


@pytest.mark.parametrize("choice", ["ignore", "refuse"])
async def test_sampling_is_the_runs(served, renderer, choice):
    async def work(endpoint):
        found = await chat(endpoint, ("user", "hi"), temperature=0.2, top_p=0.5)
        await chat(endpoint, ("user", "ho"), stop=["c"], max_tokens=5)
        return found

    engine = saying(renderer, "abcde")
    async with served(engine, work, GatewaySettings(client_sampling=choice)) as stage:
        payload, _ = await ended(stage)
    status, answer = payload.outcome["seen"]
    if choice == "refuse":
        assert (status, answer["error"]["param"]) == (400, "temperature")
    else:
        assert status == 200
    assert all(request.sampling.temperature == 1.0 for request in engine.requests)
    last = engine.requests[-1].sampling
    assert (last.max_tokens, last.stop_strings) == (5, ("\n```\n", "c"))


async def test_a_key_opens_its_own_rollout_and_no_other(served, renderer):
    async def work(endpoint):
        wrong = await asked(endpoint, "/v1/models", key="hw-other")
        none = await asked(endpoint, "/v1/models", key="")
        await chat(endpoint, ("user", "hi"))
        return [wrong, none]

    async with served(saying(renderer, "one"), work) as stage:
        payload, _ = await ended(stage)
    for status, answer in payload.outcome["seen"]:
        assert status == 401
        assert answer["error"]["code"] == "invalid_api_key"


async def test_pauses_and_parks_are_invisible_to_the_client(served, renderer):
    async def work(endpoint):
        return await chat(endpoint, ("user", "hi"))

    engine = saying(renderer, "one")
    engine.pause_at["r1.1.c0"] = 2
    async with served(engine, work) as stage:
        stage.start()
        await engine.until_paused("r1.1.c0")
        stage.park()
        parked = await stage.until(RolloutParked)
        assert parked.num_unfinished_tokens == 2
        engine._version = (0, 4)
        stage.resume()
        event = await stage.until(RolloutEnded)
    payload = stage.payload(event.payload)
    status, answer = payload.outcome["seen"]
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "one")
    assert [tuple(span) for span in event.spans] == [(0, 0, 2), (0, 4, 2)]


async def test_requests_in_parallel_are_parked_together(served, renderer):
    async def work(endpoint):
        return await asyncio.gather(chat(endpoint, ("user", "a")), chat(endpoint, ("user", "b")))

    engine = saying(renderer, "one")
    engine.pause_at |= {"r1.1.c0": 1, "r1.1.c1": 3}
    async with served(engine, work) as stage:
        stage.start()
        await engine.until_paused("r1.1.c0")
        await engine.until_paused("r1.1.c1")
        stage.park()
        parked = await stage.until(RolloutParked)
        stage.resume()
        event = await stage.until(RolloutEnded)
    assert parked.num_unfinished_tokens == 4
    assert len([each for each in stage.events if isinstance(each, RolloutParked)]) == 1
    payload = stage.payload(event.payload)
    assert [answer["choices"][0]["message"]["content"] for _, answer in payload.outcome["seen"]] == [
        "one",
        "one",
    ]
    assert len(payload.samples) == 2
    assert [each.turn for each in stage.events if isinstance(each, TurnEnded)] == [0, 1]


async def test_a_cancelled_rollout_tells_its_client_once_and_for_good(served, renderer):
    told = asyncio.Queue()

    async def work(endpoint):
        async def ask():
            told.put_nowait(await chat(endpoint, ("user", "hi")))
            told.put_nowait(await chat(endpoint, ("user", "hi")))

        task = asyncio.get_running_loop().create_task(ask())  # a program of its own, say
        await asyncio.sleep(60)
        return task

    engine = saying(renderer, "one")
    engine.pause_at["r1.1.c0"] = 1
    async with served(engine, work) as stage:
        stage.start()
        await engine.until_paused("r1.1.c0")
        stage.cancel()
        await stage.until(RolloutFailed)
        for _ in range(2):
            status, answer = await asyncio.wait_for(told.get(), 20)
            assert (status, answer["error"]["code"]) == (403, "rollout_ended")
            assert "cancelled" in answer["error"]["message"]


async def test_a_client_that_leaves_leaves_nothing_behind(served, renderer):
    async def work(endpoint):
        _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Session: {endpoint.key}\r\n"
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await engine.until_paused("r1.1.c0")
        writer.close()
        return await chat(endpoint, ("user", "hi"))

    engine = saying(renderer, "one")
    engine.pause_at["r1.1.c0"] = 1
    async with served(engine, work) as stage:
        payload, event = await ended(stage)
    assert event.num_turns == 1
    (sample,) = payload.samples
    assert sample.num_trainable == 4


async def test_a_client_that_waits_long_is_told_to_go_on_waiting(served, renderer):
    async def work(endpoint):
        async def later():
            await asyncio.sleep(0.3)
            engine.hold.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(later())
            body = {"messages": [{"role": "user", "content": "hi"}]}
            whole = group.create_task(asyncio.to_thread(sent, endpoint, "/v1/chat/completions", body))
            body = body | {"stream": True}
            stream = group.create_task(asyncio.to_thread(sent, endpoint, "/v1/chat/completions", body))
        return [whole.result()[2].decode(), stream.result()[2].decode()]

    engine = saying(renderer, "one")
    engine.hold.clear()
    async with served(engine, work, GatewaySettings(keep_alive_s=0.05)) as stage:
        payload, _ = await ended(stage)
    whole, stream = payload.outcome["seen"]
    assert whole.startswith("  ")
    assert json.loads(whole)["choices"][0]["message"]["content"] == "one"
    assert stream.startswith(": waiting\n\n: waiting\n\n")
    assert "data: [DONE]" in stream


KILLED = """
import asyncio, sys
from headway.gateway.server import Gateway

class Silent:
    max_context_tokens = 64
    async def complete(self, *args, **kwargs):
        await asyncio.sleep(3600)

async def main():
    gateway = Gateway(name=sys.argv[1])
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run())
        endpoint = await gateway.open(Silent(), "r1.1")
        print(endpoint.port, endpoint.key, flush=True)

asyncio.run(main())
"""


async def test_the_sessions_of_a_dead_worker_are_told_so_by_the_one_that_takes_its_place(tmp_path):
    name = str(tmp_path)
    worker = await started(KILLED, name)
    port, key = (await worker.stdout.readline()).decode().split()
    endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", key, int(port), None)
    assert (await asked(endpoint, "/v1/models"))[0] == 200
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Session: {key}\r\n"
    writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    worker.kill()
    await worker.wait()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""  # an API connection error to clients, who ask again
    writer.close()
    async with Gateway(name=name).serving() as gateway:
        other = await gateway.open(None, "r2.1")
        assert other.port == int(port)
        status, answer = await chat(endpoint, ("user", "hi"))
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert "worker" in answer["error"]["message"]


async def test_a_socket_in_the_run_folder_serves_as_well(tmp_path):
    gateway = Gateway(GatewaySettings(listen="unix"), name="environment0", folder=tmp_path)
    async with gateway.serving():
        await gateway.open(Models(), "r1.1")
        endpoint = await gateway.open(Models(), "r2.1")
        reader, writer = await asyncio.open_unix_connection(gateway.path)
        head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Session: {endpoint.key}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.read()
        writer.close()
    assert endpoint.port == 0
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"max_model_len":64' in answer


async def test_a_connection_out_of_a_sandbox_reaches_its_own_rollout_whatever_key_it_names(tmp_path):
    gateway = Gateway(name=str(tmp_path))
    async with gateway.serving():
        first = await gateway.open(Models(64), "r1.1")
        second = await gateway.open(Models(128), "r2.1")
        server = await asyncio.start_server(second.handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        seen = await asked(Endpoint(f"http://127.0.0.1:{port}/v1", first.key, port, None), "/v1/models")
        server.close()
    assert seen[1]["data"][0]["max_model_len"] == 128


class Models:
    """A rollout of which only the model is asked."""

    def __init__(self, max_context_tokens=64):
        self.max_context_tokens = max_context_tokens


async def test_an_answer_that_no_client_took_is_told_to_who_asks_the_same_again():
    session = Session(Models(), "r1.1")
    ids = array("i", [1])
    done = Completion(ids, ids, array("f", [0.0]), Message("assistant", "one"), "stop")
    session.keep(b"request", done)
    assert session.kept(b"another") is None
    assert session.kept(b"request") is done
    assert session.kept(b"request") is None


HOSTILE = [
    b"\x00\xff\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 2_000_000,
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000,
    b"GET /v1/models HTTP/1.0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n[[[[[",
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
async def test_what_is_no_request_harms_nobody_else(tmp_path, data):
    gateway = Gateway(GatewaySettings(max_request_mb=1), name=str(tmp_path))
    async with gateway.serving():
        endpoint = await gateway.open(Models(), "r1.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        writer.close()
        assert (await asked(endpoint, "/v1/models"))[0] == 200


BEGUN = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("data", [BEGUN[:30], f"{BEGUN}Content-Length: 50\r\n\r\n{{"], ids=["head", "body"])
async def test_a_request_that_stays_unfinished_is_given_up_and_an_idle_connection_is_not(tmp_path, data):
    gateway = Gateway(GatewaySettings(request_timeout_s=0.2), name=str(tmp_path))
    async with gateway.serving():
        endpoint = await gateway.open(Models(), "r1.1")
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        answer = asyncio.ensure_future(reader.read())
        with contextlib.suppress(ConnectionError):
            for part in (data[:20], *data[20:], *"x" * 10_000):  # never silent, and never done
                writer.write(part.encode())
                await asyncio.sleep(0.01)
                if answer.done():
                    break
        assert (await answer).startswith(b"HTTP/1.1 408")
        assert b"within 0.2 s (gateway.request_timeout_s)" in answer.result()
        writer.close()
        idle_writer.write(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Session: {endpoint.key}\r\n\r\n".encode())
        assert (await idle_reader.readline()).startswith(b"HTTP/1.1 200")
        idle_writer.close()


async def test_a_client_reads_why_its_request_is_too_long(tmp_path):
    gateway = Gateway(GatewaySettings(max_request_mb=1), name=str(tmp_path))
    async with gateway.serving():
        endpoint = await gateway.open(Models(), "r1.1")
        messages = [{"role": "user", "content": "x" * (24 << 20)}]
        status, told = await asked(endpoint, "/v1/chat/completions", {"model": "m", "messages": messages})
        assert (status, told["error"]["code"]) == (413, "request_too_large")
        assert "gateway.max_request_mb" in told["error"]["message"]
        assert (await asked(endpoint, "/v1/models"))[0] == 200
