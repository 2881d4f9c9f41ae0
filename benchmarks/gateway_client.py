"""The clients of benchmarks/gateway.py, in a process of their own.

Reads one job, a JSON object, from stdin; prints one. `load`: requests at a fixed rate, each on the
next session's own connection, each with its whole history. `chats`: conversations one beside the other, as
fast as they go. `hold`: opens connections, says so, and holds them until stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

Message = dict[str, Any]
MAX_MESSAGES = 12  # then a session begins anew, as an agent with a new task does


@dataclass
class Client:
    """One session's program."""

    port: int
    key: str
    messages: list[Message] = field(default_factory=list)
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, text: str, **fields: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Say something; return the answer and the server's own times, milliseconds."""
        if self.writer is None:
            await self.connect()
        assert self.reader is not None
        assert self.writer is not None
        self.messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "policy", "messages": self.messages, **fields}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        if " 200 " not in lines[0] + " ":
            raise RuntimeError(lines[0])
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        answer = json.loads(await self.reader.readexactly(int(headers["content-length"])))
        times = [part.strip().split(";dur=") for part in headers["server-timing"].split(",")]
        self.messages.append(answer["choices"][0]["message"])
        return answer, {name: float(value) for name, value in times}


async def load(job: dict[str, Any]) -> dict[str, Any]:
    """Ask at a fixed rate."""
    clients = [Client(job["port"], key) for key in job["keys"]]
    for client in clients:
        await client.connect()
    found: list[tuple[float, float]] = []
    late = 0.0

    async def one(client: Client, number: int) -> None:
        if len(client.messages) >= MAX_MESSAGES:
            client.messages.clear()
        began = perf_counter()
        _, times = await client.ask(f"The output of step {number} was: " + "all is well. " * 8)
        found.append((1000 * (perf_counter() - began), times["total"]))

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(job["rate"] * job["seconds"])):
            at = began + number / job["rate"]
            late = max(late, perf_counter() - at)
            await asyncio.sleep(max(0.0, at - perf_counter()))
            group.create_task(one(clients[number % len(clients)], number))
    return {"client_ms": [a for a, _ in found], "server_ms": [b for _, b in found], "late_s": late}


async def chats(job: dict[str, Any]) -> dict[str, Any]:
    """Hold whole conversations."""

    async def one(client: Client) -> int:
        num_tokens = 0
        for turn in range(job["turns"]):
            answer, _ = await client.ask(f"{turn}+1=", max_tokens=job["tokens"])
            num_tokens += answer["usage"]["completion_tokens"]
        return num_tokens

    clients = [Client(job["port"], key) for key in job["keys"]]
    for client in clients:
        await client.connect()
    began = perf_counter()
    counts = await asyncio.gather(*(one(client) for client in clients))
    return {"tokens": sum(counts), "seconds": perf_counter() - began}


async def hold(job: dict[str, Any]) -> dict[str, Any]:
    """Let each session say something once, then keep its connection."""
    clients = [Client(job["port"], key) for key in job["keys"]]
    for client in clients:
        await client.ask("Here is the task, of some length: " + "look at the files. " * 8)
    print(json.dumps({"open": len(clients)}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    return {}


def main() -> None:
    """Do the job."""
    job = json.loads(sys.stdin.readline())
    print(json.dumps(asyncio.run({"load": load, "chats": chats, "hold": hold}[job["kind"]](job))), flush=True)


if __name__ == "__main__":
    main()
