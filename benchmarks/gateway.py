"""The gateway: server time a request, memory of idle sessions, and what a rollout loses by going through it.

    python benchmarks/gateway.py [--scenes load idle rate] [--seconds 20] [--sessions 1000] [--rate 100]
                                 [--idle 10000] [--rounds 5]

- load: sessions that take turns, at a fixed rate of requests with whole histories, an engine that answers at
  once with 32 tokens. Server time is from the complete request to the response's last byte, everything
  included: JSON, the history's branch, the chat template, tokens, the recorder. Beside it the CPU time that
  passed meanwhile, which other work on the machine disturbs less, and what the clients saw.
- idle: resident memory that sessions take which have said something once and keep their connection.
- rate: tokens/s of rollouts whose turns have 128 tokens, with the tiny model, asked in this process or by a
  program over HTTP, interleaved: one rollout, and eight at a time.

Clients run in a process of their own. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from keep import merge

from headway.core.clock import process_cpu_s, stopwatch
from headway.core.commands import StartRollout
from headway.core.protocols import Chunk, Endpoint, GenerateRequest
from headway.core.records import Message, Task, VersionSpan
from headway.environments.conversation import Conversation
from headway.environments.generation import GenerationLimits
from headway.environments.watch import Watch
from headway.gateway.server import Gateway
from headway.models.checkpoint import resolve
from headway.renderers.chat import Renderer

CLIENT = Path(__file__).with_name("gateway_client.py")
TASK = Task("train/0", "train", 0, {})
TURN_TOKENS, TURNS = 128, 4


class Instant:
    """An engine that answers at once."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        ids = self._ids[: request.sampling.max_tokens]
        logprobs, spans = array("f", [-0.5] * len(ids)), (VersionSpan(0, 0, len(ids)),)
        yield Chunk(array("i", ids), logprobs, spans, "stop", "", "fake", len(ids), 0.0, 0.0, 0.0)

    async def abort(self, request_ids: object) -> None:
        pass

    async def end_session(self, session: str) -> None:
        pass


class WithoutEnd:
    """The same engine, whose answers end by their length alone."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        sampling = replace(request.sampling, stop_ids=())
        return self._engine.generate(replace(request, sampling=sampling))

    async def abort(self, request_ids: Any) -> None:
        await self._engine.abort(request_ids)

    async def end_session(self, session: str) -> None:
        await self._engine.end_session(session)


class Timed(Gateway):
    """The gateway, which also says what CPU time passed in this process while it served each request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cpu_ms: list[float] = []

    async def _serve(self, *given: Any) -> None:
        began = process_cpu_s()
        await super()._serve(*given)
        self.cpu_ms.append(1000 * (process_cpu_s() - began))


class Rollouts:
    """Rollouts of one engine, each with an endpoint."""

    def __init__(self, engine: Any, renderer: Renderer, limits: GenerationLimits, gateway: Timed) -> None:
        self._engine, self._renderer, self._limits, self.gateway = engine, renderer, limits, gateway
        self._number = 0
        self._stack = AsyncExitStack()

    def new(self) -> Conversation:
        self._number += 1
        name = f"r{self._number}"
        command = StartRollout(name, 1, name, TASK.id, "train", "policy", self._number, 1.0, "engine")
        return Conversation(
            command, {"engine": self._engine}, self._renderer, self._limits, (), None, Watch(command, TASK),
            lambda event: None, self.gateway,
        )  # fmt: skip

    async def served(self, count: int) -> list[Endpoint]:
        return [await self._stack.enter_async_context(self.new().endpoint()) for _ in range(count)]

    async def close(self) -> None:
        await self._stack.aclose()


class ClientProcess:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, **job: Any) -> ClientProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        await process.stdin.drain()
        return cls(process)

    async def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def under_load(options: argparse.Namespace, rollouts: Rollouts) -> dict[str, float]:
    endpoints = await rollouts.served(options.sessions)
    keys = [endpoint.key for endpoint in endpoints]
    port = endpoints[0].port
    cpu_s, began = process_cpu_s(), stopwatch()
    client = await ClientProcess.start(
        kind="load", port=port, keys=keys, rate=options.rate, seconds=options.seconds
    )
    found = await client.line()
    await client.end()
    found["server_cpu_ms"] = rollouts.gateway.cpu_ms
    spent_s, cpu_s = stopwatch() - began, process_cpu_s() - cpu_s
    result = {
        f"load.{side}_ms.{name}": percentile(found[f"{side}_ms"], share)
        for side in ("server", "server_cpu", "client")
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    result |= {
        "load.requests": len(found["server_ms"]),
        "load.cpu_ms_per_request": 1000 * cpu_s / len(found["server_ms"]),
        "load.client_late_s": found["late_s"],
        "load.seconds": spent_s,
    }
    return result


async def idle(options: argparse.Namespace, rollouts: Rollouts) -> dict[str, float]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    warm = await rollouts.served(50)
    client = await ClientProcess.start(kind="hold", port=warm[0].port, keys=[each.key for each in warm])
    await client.line()
    await client.end()
    before = resident_mib()
    endpoints = await rollouts.served(options.idle)
    quiet = resident_mib()
    connected = min(options.idle, most - 200)
    client = await ClientProcess.start(
        kind="hold", port=endpoints[0].port, keys=[each.key for each in endpoints[:connected]]
    )
    await client.line()
    after = resident_mib()
    await client.end()
    return {
        "idle.sessions": options.idle,
        "idle.connections": connected,
        "idle.sessions_mib": quiet - before,
        "idle.with_history_and_connection_mib": after - before,
    }


async def token_rate(options: argparse.Namespace, rollouts: Rollouts) -> dict[str, float]:
    async def inside(count: int) -> float:
        chats = [rollouts.new() for _ in range(count)]

        async def one(chat: Conversation) -> int:
            messages: list[Message] = []
            num_tokens = 0
            for turn in range(TURNS):
                messages.append(Message("user", f"{turn}+1="))
                done = await chat.complete(messages, max_tokens=TURN_TOKENS)
                messages.append(done.message)
                num_tokens += done.num_tokens
            await chat.close()
            return num_tokens

        began = stopwatch()
        counts = await asyncio.gather(*(one(chat) for chat in chats))
        return sum(counts) / (stopwatch() - began)

    async def with_cpu(work: Awaitable[float], count: int) -> tuple[float, float]:
        """Return tokens a second, and CPU milliseconds of this process a token."""
        cpu_s = process_cpu_s()
        rate = await work
        return rate, 1000 * (process_cpu_s() - cpu_s) / (count * TURNS * TURN_TOKENS)

    async def through(count: int) -> float:
        endpoints = await rollouts.served(count)
        keys = [each.key for each in endpoints]
        job: dict[str, Any] = {"port": endpoints[0].port, "keys": keys, "turns": TURNS, "tokens": TURN_TOKENS}
        client = await ClientProcess.start(kind="chats", **job)
        found = await client.line()
        await client.end()
        if found["tokens"] != count * TURNS * TURN_TOKENS:
            raise RuntimeError(f"the engine stopped early: {found}")
        return found["tokens"] / found["seconds"]

    result: dict[str, float] = {}
    for count in (1, 8):
        await inside(count)  # warm
        pairs = [
            (await with_cpu(inside(count), count), await with_cpu(through(count), count))
            for _ in range(options.rounds)
        ]
        result |= {
            f"rate.inside_tokens_per_s.{count}": median(plain for (plain, _), _ in pairs),
            f"rate.gateway_tokens_per_s.{count}": median(served for _, (served, _) in pairs),
            f"rate.loss.{count}": 1 - median(served / plain for (plain, _), (served, _) in pairs),
            f"rate.inside_cpu_ms_per_token.{count}": median(cpu for (_, cpu), _ in pairs),
            f"rate.gateway_cpu_ms_per_token.{count}": median(cpu for _, (_, cpu) in pairs),
        }
    return result


async def measured(options: argparse.Namespace) -> dict[str, float]:
    model = resolve("tiny")
    renderer = Renderer(model)
    limits = GenerationLimits(TURN_TOKENS, 1024)
    gateway = Timed(name=f"bench.{os.getpid()}")
    result: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run())
        instant = Instant([*renderer.encode("The answer is 12, as was asked."), renderer.closing_id])
        big = GenerationLimits(TURN_TOKENS, 1 << 20)
        for name, scene in (("load", under_load), ("idle", idle)):
            if name not in options.scenes:
                continue
            rollouts = Rollouts(instant, renderer, big, gateway)
            found = await scene(options, rollouts)
            print(json.dumps(found, indent=1), flush=True)
            merge("gateway", name, found)
            result |= found
            await rollouts.close()
        if "rate" not in options.scenes:
            gateway.close()
            return result
        # Only now: an environment worker has no torch either, whose objects the collector would visit.
        from headway.generator.engine import EmbeddedEngine
        from headway.generator.settings import GeneratorSettings
        from headway.models.load import load_state

        shape, state = load_state(model)
        engine = EmbeddedEngine(
            state,
            shape,
            GeneratorSettings(threads=1, max_running=16, max_context_tokens=1024),
            replica="engine",
            decode_text=None,
            read_weights=lambda _: state.items(),
        )
        rollouts = Rollouts(WithoutEnd(engine), renderer, limits, gateway)
        found = await token_rate(options, rollouts)
        merge("gateway", "rate", found)
        result |= found
        await rollouts.close()
        await engine.close()
        gateway.close()
    return result


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", nargs="+", default=["load", "idle", "rate"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measured(options))))


if __name__ == "__main__":
    main()
