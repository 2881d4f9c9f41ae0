"""How the worker of a taskset sees the answers that pass through verifiers' own server, whole or streamed."""

import sys
from array import array
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

from headway.environments.verifiers.process import SCRIPT


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return import_module("headway_v1")


def digest(*ids):
    return {"num": len(ids), "digest": sha256(array("i", ids).tobytes()).hexdigest()}


async def streamed(*events):
    for event in events:
        yield event


BEGUN = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
WITH_IDS = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[%s]}]}\n\n'
ENDED = b'data: {"choices":[],"usage":{}}\r\n\r\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ((BEGUN, WITH_IDS % b"5,6", WITH_IDS % b"7", ENDED), digest(5, 6, 7)),
        ((BEGUN + WITH_IDS.replace(b": {", b":{") % b"5", b": waiting\n\n", ENDED), digest(5)),
        ((WITH_IDS % b"", ENDED), digest()),
        ((BEGUN, ENDED), None),
    ],
    ids=["in parts", "other blanks", "no token", "no ids"],
)
async def test_the_token_ids_of_a_streamed_answer_are_noted_at_its_end(worker, events, answer):
    answers = []
    seen = []
    async for event in worker.noted(streamed(*events), answers):
        assert answers == []
        seen.append(event)
    assert tuple(seen) == events
    assert answers == [answer]


@dataclass(frozen=True)
class Config:
    base_url: str
    headers: dict = field(default_factory=dict)

    def model_copy(self, update):
        return replace(self, **update)


class Shared:
    """A client of verifiers, as far as it is used."""

    def __init__(self, config):
        self.config = config
        self.sent = []

    async def get_response(self, dialect, body, sampling, *, headers=None):
        self.sent.append((body, dict(headers)))
        return SimpleNamespace(raw={"choices": [{"token_ids": [5]}]})

    async def relay(self, dialect, body, *, headers=None):
        self.sent.append((body, dict(headers)))
        return SimpleNamespace(chunks=streamed(WITH_IDS % b"7", ENDED))


@pytest.fixture
def server(worker, monkeypatch):
    class Server:
        def __init__(self):
            self.clients = {}

        def _client(self, config):
            return self.clients.setdefault(repr(config), Shared(config))

    module = ModuleType("verifiers.v1.interception.server")
    module.InterceptionServer = Server
    monkeypatch.setitem(sys.modules, module.__name__, module)
    worker._watch_clients()
    worker._watch_clients()  # once is enough
    return Server()


async def test_rollouts_share_one_client_and_each_speaks_by_its_own_key(server, worker):
    one, two = (server._client(Config("http://policy", {"X-Session": key})) for key in ("a", "b"))
    await one.get_response("chat", {"model": "policy"}, None, headers={"X-Feature": "1"})
    async for _ in (await two.relay("chat", {"stream": True})).chunks:
        pass
    (shared,) = server.clients.values()
    assert shared.config == Config("http://policy")
    assert shared.sent == [
        ({"model": "policy", "return_token_ids": True}, {"X-Feature": "1", "X-Session": "a"}),
        ({"stream": True, "return_token_ids": True}, {"X-Session": "b"}),
    ]
    assert [worker._answers.pop(key) for key in ("a", "b")] == [[digest(5)], [digest(7)]]


async def test_a_client_of_some_other_endpoint_is_left_alone(server):
    judge = server._client(Config("http://judge"))
    await judge.relay("chat", {}, headers={})
    assert judge.sent == [({}, {})]


def test_a_version_that_cannot_be_watched_is_refused(worker, monkeypatch):
    module = ModuleType("verifiers.v1.interception.server")
    module.InterceptionServer = type("Server", (), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(worker.Fault, match="this version of verifiers is not supported"):
        worker._watch_clients()
