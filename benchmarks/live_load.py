"""The live driver and an environment worker with 10,000 rollouts at once, on an engine that only waits.

Two real processes: the driver with its journal, and a rollout host with one coroutine a rollout, joined by
the link that a run uses. Engine and trainer are fakes that answer after a while; everything between is the
product's own. Each process measures how late its event loop wakes, and what memory a rollout takes.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from headway.core.clock import RunClock, stopwatch
from headway.core.commands import (
    ApplyVersion,
    Cancel,
    Checkpoint,
    Command,
    Publish,
    RequestTask,
    Score,
    Signal,
    StartRollout,
    Train,
)
from headway.core.events import (
    CheckpointDone,
    Event,
    GroupSignal,
    ReplicaJoined,
    RunStarted,
    StepEnded,
    StopAsked,
    TaskOffered,
    VersionApplied,
    VersionPublished,
    WorkerJoined,
)
from headway.core.payload import PayloadWriter
from headway.core.protocols import (
    Chunk,
    EngineCapabilities,
    EngineStats,
    GenerateRequest,
    Outcome,
    SandboxProvider,
)
from headway.core.records import Message, Reward, Task, VersionSpan
from headway.environments.generation import GenerationLimits
from headway.environments.host import RolloutHost
from headway.models.checkpoint import resolve
from headway.models.load import model_facts
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.renderers.chat import Renderer
from headway.runtime.life import calm_collector
from headway.runtime.live import LiveDriver, Share, Threads
from headway.runtime.wire import Link, socket_pair
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from headway.telemetry.header import new_header
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics

IN_FLIGHT = 10_000
GROUP = 8
TURN_S = 15.0  # mean of an answer of the waiting engine
WARM_S, MEASURED_S = 25.0, 40.0
BEAT_S = 0.01
ANSWER = 32  # tokens


def resident_bytes() -> int:
    """Return this process's resident memory."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


async def lags(found: list[float]) -> None:
    """Note for ever how much later than asked the event loop wakes."""
    while True:
        began = stopwatch()
        await asyncio.sleep(BEAT_S)
        found.append(stopwatch() - began - BEAT_S)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# --- the worker


class WaitingEngine:
    """Answers every request with the same tokens after an exponential time."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        self._ids = array("i", range(10, 10 + ANSWER))
        self._logprobs = array("f", [-0.5] * ANSWER)

    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(IN_FLIGHT, 4096, "sampling", True, True, False)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        wait_s = self._rng.expovariate(1.0 / TURN_S)
        await asyncio.sleep(wait_s)
        yield Chunk(
            self._ids, self._logprobs, (VersionSpan(0, 0, ANSWER),), "stop", "", "generator0",
            len(request.prompt_ids) + ANSWER, 0.0, 0.0, wait_s,
        )  # fmt: skip

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        return

    async def end_session(self, session: str) -> None:
        return

    async def apply(self, lineage: int, number: int, manifest: str, kv: str) -> float:
        return 0.0

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.0, 0.0)

    async def close(self) -> None:
        return


class Talk:
    """Three answers, then a reward by chance."""

    name, resume, needs_sandbox, stop_strings, system_prompt = "talk", "restart", False, (), None

    def num_tasks(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int, level: int | None) -> Task:
        return Task(f"{split}/{index}", split, 0)

    def prompt(self, task: Task) -> Sequence[Message]:
        return [Message("user", f"Tell me about number {task.id}.")]

    async def rollout(self, task: Task, chat: Any, sandbox: Any) -> Outcome:
        for turn in range(3):
            await chat.say([Message("user", f"Tell me about number {task.id}, part {turn}.")])
        return Outcome({"reward": random.random() < 0.5})

    async def score(self, task: Task, outcome: Outcome, sandbox: Any) -> Reward:
        return Reward(float(outcome.data["reward"]))


async def work(fd: int, folder: Path) -> None:
    """Serve rollouts until the driver's end closes; then leave what was measured in the folder."""
    link = await Link.over(socket.socket(fileno=fd))
    environment: Any = Talk()
    found: list[float] = []
    provider: SandboxProvider = BubblewrapProvider(SandboxSettings())
    payloads = PayloadWriter(folder, "environment0.bin")
    host = RolloutHost(
        environment, {"generator0": WaitingEngine()}, Renderer(resolve("tiny")), provider, payloads, folder,
        lambda event: link.send("event", event), GenerationLimits(64, 4096), "bench",
    )  # fmt: skip
    before = resident_bytes()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run())
        measuring = tasks.create_task(lags(found))
        memory = 0
        while (message := await link.receive()) is not None:
            command = message[1]
            match command:
                case "measure":
                    found.clear()
                    memory = resident_bytes() - before
                case "measured":
                    result = {"lag_p99_ms": percentile(found, 0.99) * 1e3, "memory": memory}
                    (folder / "worker.json").write_text(json.dumps(result))
                case RequestTask():
                    task = environment.task(command.split, command.index, None)
                    link.send("event", TaskOffered(command.request, task.id, 0))
                case StartRollout():
                    host.start(command, Task(command.task_id, "train", 0))
                case Score():
                    host.score(command, Task(command.task_id, "train", 0))
                case Cancel():
                    host.cancel(command)
                case _:
                    raise TypeError(type(command).__name__)
        measuring.cancel()
        running.cancel()


# --- the driver


def advantages(command: Signal) -> GroupSignal:
    """Take the group's mean off."""
    mean = sum(reward for _, reward in command.rewards) / len(command.rewards)
    return GroupSignal(command.group, tuple((name, reward - mean) for name, reward in command.rewards))


class FakeWorker:
    """A trainer or a generator that answers after a second, in the driver's own process."""

    def __init__(self, driver: LiveDriver) -> None:
        self._driver = driver

    def send(self, kind: str, command: Command | int) -> None:
        """Take a command."""
        answer: Event
        match command:
            case Train():
                answer = StepEnded(command.batch, command.step, 1.0, 1, 1)
            case Publish():
                answer = VersionPublished(command.lineage, command.number, 0.1, "v", 1)
            case ApplyVersion():
                answer = VersionApplied("generator0", 0, command.lineage, command.number, 0.1)
            case Checkpoint():
                answer = CheckpointDone(command.step, "c", 0.1)
            case _:
                return
        asyncio.get_running_loop().call_later(1.0, self._driver.inbox.put_nowait, answer)


async def drive(folder: Path) -> dict[str, float]:
    """Keep 10,000 rollouts in flight and measure."""
    batch = IN_FLIGHT // 2
    settings = SchedulerSettings(
        queue=QueueSettings(group_size=GROUP, batch_size=batch, bound=20, depth=1),
        eval=EvalSettings(num_tasks=0),
        stop=StopSettings(steps=10_000),
        checkpoint=CheckpointSettings(every_steps=0),
    )
    model = resolve("tiny")
    header = new_header(
        config={}, seed=0, queue={}, code="", model=model_facts(model), lora_params=None, usd_per_hour=None,
        peak_flops_per_s=0.0,
    )  # fmt: skip
    journal = JournalWriter(folder / "journal.jsonl")
    journal.write_header(header)
    share, found = Share(1, 1), list[float]()
    before = resident_bytes()
    driver = LiveDriver(
        Scheduler(settings), journal, RunClock(0.0), RunMetrics(header), next_seq=0,
        advantages=advantages,
        threads=Threads(share, share), restart=lambda command: None, checkpointed=lambda seq, event: None,
        keep=lambda: (), give_up_reserve=lambda: False,
        say=lambda line: None,
    )  # fmt: skip
    ours, theirs = socket_pair()
    worker = subprocess.Popen(  # noqa: ASYNC220 - before anything is measured
        [sys.executable, __file__, str(theirs.fileno()), str(folder)], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    link = await Link.over(ours)
    driver.connect("environment", "environment0", link)
    for role in ("trainer", "generator0"):
        driver.connect("worker", role, FakeWorker(driver))  # pyright: ignore[reportArgumentType]

    async def listen() -> None:
        while (message := await link.receive()) is not None:
            driver.inbox.put_nowait(message[1])

    result: dict[str, float] = {}

    async def measure() -> None:
        await asyncio.sleep(WARM_S)
        found.clear()
        events = driver._seq
        result["live.in_flight"] = sum(len(g.rollouts) for g in driver._scheduler.state.groups.values())
        memory = resident_bytes() - before
        link.send("command", "measure")
        await asyncio.sleep(MEASURED_S)
        result["live.events_per_s"] = round((driver._seq - events) / MEASURED_S, 1)
        result["live.driver.lag_p99_ms"] = round(percentile(found, 0.99) * 1e3, 2)
        result["live.driver.kib_per_rollout"] = round(memory / IN_FLIGHT / 1024, 2)
        link.send("command", "measured")
        await asyncio.sleep(1.0)
        said = json.loads((folder / "worker.json").read_text())
        result["live.worker.lag_p99_ms"] = round(said["lag_p99_ms"], 2)
        result["live.worker.kib_per_rollout"] = round(said["memory"] / IN_FLIGHT / 1024, 2)
        driver.inbox.put_nowait(StopAsked("measured"))

    joined = [WorkerJoined("trainer", "trainer"), WorkerJoined("environment", "environment0")]
    async with asyncio.TaskGroup() as tasks:
        others = [tasks.create_task(lags(found)), tasks.create_task(listen()), tasks.create_task(measure())]
        for event in [*joined, ReplicaJoined("generator0", 0, 0, 0, IN_FLIGHT)]:
            driver.inbox.put_nowait(event)
        finish = await driver.run([RunStarted()])
        for other in others:
            other.cancel()
    worker.kill()
    worker.wait()
    link.close()
    journal.close()
    if finish.outcome != "interrupted":
        raise RuntimeError(f"the run ended early ({finish.outcome}): {finish.message}")
    return result


def live_load() -> dict[str, float]:
    """Measure; return lags and memory."""
    calm_collector()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(drive(Path(folder)))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        calm_collector()
        asyncio.run(work(int(sys.argv[1]), Path(sys.argv[2])))
    else:
        print(json.dumps(live_load(), indent=2))
