"""Parts for tests of rollouts: a tiny tokenizer with a ChatML template, and a scripted engine."""

import asyncio
import hashlib
import json
from array import array
from collections.abc import Callable
from itertools import count

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headway.core.clock import stopwatch
from headway.core.errors import EngineError
from headway.core.protocols import Chunk, EngineCapabilities, EngineStats
from headway.core.records import VersionSpan

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(folder, *, template=CHATML, merges=(("a", "b"), ("Ċ", "Ċ"))):
    """Write a byte-level tokenizer: 256 bytes, the merges, three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    end = tokenizer.token_to_id("<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    return tokenizer


class ScriptedEngine:
    """An engine that says what it is told: `script(request)` gives the ids of an answer.

    Without a script the ids are a hash of what must decide them. An answer stops after its script, at a
    stop id, at a completed stop string (with `decode`), or at its length. `hold` keeps requests running
    until it is set.
    """

    def __init__(
        self,
        script: Callable | None = None,
        *,
        context=4096,
        max_running=64,
        vocab=64,
        decode: Callable | None = None,
        manifests: Callable | None = None,
    ):
        self._script = script
        self._context = context
        self._max_running = max_running
        self._vocab = vocab
        self._decode = decode
        self._manifests = manifests or (lambda manifest: True)
        self._version = (0, 0)
        self._order = count()
        self._waiting = []  # (priority, order, future)
        self._running = 0
        self._aborted: dict[str, asyncio.Event] = {}
        self._closed = False
        self.hold = asyncio.Event()
        self.hold.set()
        self.pause_at = {}  # request id -> tokens after which it waits until the entry is gone
        self.paused = set()  # requests that wait so
        self.die_at = {}  # request id -> tokens after which it is lost
        self.finish_as = {}  # request id -> (finish, message), instead of an answer
        self.requests = []
        self.ended_sessions = []

    def capabilities(self):
        return EngineCapabilities(self._max_running, self._context, "sampling", True, True, False)

    async def generate(self, request):
        self.requests.append(request)
        began = stopwatch()
        finish, message = self._refusal(request)
        if finish is not None:
            yield Chunk(array("i"), array("f"), (), finish, message)
            return
        stop = self._aborted[request.request_id] = asyncio.Event()
        try:
            await self._enter(request, stop)
            waited = stopwatch()
            ids = array("i")
            finish = "aborted" if stop.is_set() else None
            while finish is None:
                await asyncio.sleep(0)
                await self._held(stop)
                await self._paused(request.request_id, len(ids), stop)
                if stop.is_set():
                    finish = "aborted"
                    break
                if self.die_at.get(request.request_id) == len(ids):
                    yield Chunk(array("i"), array("f"), (), "lost", "the replica died", "replica-0")
                    return
                token = self._token(request, len(ids), ids)
                if token is None:
                    finish = "stop"
                    break
                ids.append(token)
                finish = self._finish(request, ids)
                chunk = Chunk(array("i", [token]), array("f", [-0.5]), (VersionSpan(*self._version, 1),))
                yield chunk
            yield Chunk(
                array("i"), array("f"), (), finish, "" if finish != "aborted" else "aborted", "replica-0",
                len(request.prompt_ids) + len(ids), waited - began, 1e-9, stopwatch() - waited,
            )  # fmt: skip
        finally:
            self._aborted.pop(request.request_id, None)
            self._leave()

    def _refusal(self, request):
        if request.request_id in self.finish_as:
            return self.finish_as[request.request_id]
        if self._closed:
            return "lost", "the engine is closed"
        prompt = request.prompt_ids
        known = all(0 <= token < max(self._vocab, 512) for token in prompt)
        if not prompt or len(prompt) >= self._context or request.sampling.max_tokens < 1 or not known:
            return "rejected", f"a prompt of {len(prompt)} tokens cannot run"
        return None, ""

    async def _enter(self, request, stop):
        if self._running >= self._max_running:
            place = asyncio.get_running_loop().create_future()
            self._waiting.append((request.priority, next(self._order), place, stop))
            self._waiting.sort(key=lambda entry: entry[:2])
            self._running += 1  # given back by _leave, whoever leaves
            try:
                await place
            finally:
                self._running -= 1
                self._waiting = [entry for entry in self._waiting if entry[2] is not place]
        self._running += 1

    def _leave(self):
        self._running -= 1
        if self._waiting and self._running - len(self._waiting) < self._max_running:
            self._waiting[0][2].done() or self._waiting[0][2].set_result(None)

    async def _paused(self, name, num_tokens, stop):
        while self.pause_at.get(name) == num_tokens and not stop.is_set():
            self.paused.add(name)
            await asyncio.sleep(0.001)
        self.paused.discard(name)

    async def until_paused(self, name):
        while name not in self.paused:  # noqa: ASYNC110 - a test's own wait
            await asyncio.sleep(0.001)

    async def _held(self, stop):
        while not self.hold.is_set() and not stop.is_set():  # noqa: ASYNC110 - either of two events
            await asyncio.sleep(0.001)

    def _token(self, request, at, ids):
        if self._script is not None:
            script, at = self._script(request), at + request.num_answer_tokens
            return script[at] if at < len(script) else None
        sampling = request.sampling
        drawn = sampling.seed if sampling.temperature else None
        seed = repr(([*request.prompt_ids, *ids], self._version, drawn)).encode()
        return int.from_bytes(hashlib.blake2b(seed, digest_size=4).digest(), "big") % self._vocab

    def _finish(self, request, ids):
        sampling = request.sampling
        begun = request.prompt_ids[len(request.prompt_ids) - request.num_answer_tokens :]
        text = self._decode(begun + ids) if self._decode and sampling.stop_strings else ""
        if ids[-1] in sampling.stop_ids or any(stop in text for stop in sampling.stop_strings):
            return "stop"
        room = self._context - len(request.prompt_ids)
        return "length" if len(ids) >= min(sampling.max_tokens, room) else None

    async def abort(self, request_ids):
        for request_id in list(self._aborted) if request_ids is None else request_ids:
            if request_id in self._aborted:
                self._aborted[request_id].set()
        for entry in self._waiting:
            if entry[3].is_set() and not entry[2].done():
                entry[2].set_result(None)

    async def end_session(self, session):
        self.ended_sessions.append(session)

    async def apply(self, lineage, number, manifest, kv):
        if not self._manifests(manifest):
            raise EngineError("no such manifest", value=manifest)
        self._version = (lineage, number)
        return 0.0

    async def load_adapter(self, policy, lineage, number, manifest, kv):
        raise EngineError("it has no adapters")

    async def drop_adapter(self, policy):
        raise EngineError("it has no adapters")

    def stats(self):
        return EngineStats(self._running - len(self._waiting), len(self._waiting), 0.0, 0.0)

    async def close(self):
        self._closed = True
        await self.abort(None)
