"""A rollout host on a stage: a given environment, what the host told, and a scheduler's reflexes."""

import asyncio
from contextlib import asynccontextmanager

from headway.core.commands import Cancel, GrantSandbox, Park, Resume, Score, StartRollout
from headway.core.events import RolloutEnded, RolloutParked, SandboxWanted, Scored, ScoreFailed
from headway.core.payload import PayloadWriter, read_payload
from headway.core.records import Task
from headway.environments.generation import GenerationLimits
from headway.environments.host import HostSettings, RolloutHost
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings

TASK = Task("train/0", "train", 1, {})


class Playground:
    """An environment whose rollout and score are given functions."""

    name = "playground"
    needs_sandbox = True
    stop_strings = ("\n```\n",)
    system_prompt = None

    def __init__(self, rollout=None, score=None, resume="restart"):
        self._rollout, self._score, self.resume = rollout, score, resume

    async def rollout(self, task, chat, sandbox):
        return await self._rollout(chat, sandbox)

    async def score(self, task, outcome, sandbox):
        return await self._score(outcome, sandbox)


class Stage:
    """A host, what it told, and a scheduler's reflexes."""

    def __init__(self, host, payload_dir, provider):
        self.host, self.payload_dir, self.provider = host, payload_dir, provider
        self.events = []
        self.grants = True
        self._changed = asyncio.Event()

    def told(self, event):
        self.events.append(event)
        self._changed.set()
        if isinstance(event, SandboxWanted) and self.grants:
            self.host.grant(GrantSandbox(event.rollout, event.attempt, event.sandbox))

    async def until(self, kind, number=1):
        while True:
            found = [event for event in self.events if isinstance(event, kind)]
            if len(found) >= number:
                return found[number - 1]
            self._changed.clear()
            try:
                async with asyncio.timeout(20):
                    await self._changed.wait()
            except TimeoutError:
                raise AssertionError(f"no {kind} came, only {self.events}") from None

    def kinds(self):
        return [type(event).__name__ for event in self.events]

    def start(self, rollout="r1", attempt=1, replica="replica-0", **changes):
        options = {"seed": 5, "temperature": 1.0, "partial": ""} | changes
        command = StartRollout(
            rollout,
            attempt,
            "g1",
            TASK.id,
            "train",
            "policy",
            options["seed"],
            options["temperature"],
            replica,
            options["partial"],
        )
        self.host.start(command, TASK)

    async def parked_in(self, engine, request, num_tokens):
        """Start a rollout and park it in a request, after so many of its tokens; return RolloutParked."""
        engine.pause_at[request] = num_tokens
        self.start()
        await engine.until_paused(request)
        self.park()
        return await self.until(RolloutParked)

    async def run_and_score(self):
        self.start()
        ended = await self.until(RolloutEnded)
        self.host.score(Score("r1", 1, 1, TASK.id, ended.payload), TASK)
        return await self.until((Scored, ScoreFailed))

    def park(self, rollout="r1", attempt=1):
        self.host.park(Park(rollout, attempt))

    def resume(self, rollout="r1", attempt=1, replica="replica-0"):
        self.host.resume(Resume(rollout, attempt, replica))

    def cancel(self, rollout="r1", attempt=1):
        self.host.cancel(Cancel(rollout, attempt, "stop"))

    def payload(self, reference):
        return read_payload(self.payload_dir, reference)


@asynccontextmanager
async def opened(folder, engines, renderer, rollout, score=None, limits=None, resume="restart", **settings):
    """Serve rollouts; at the end nothing may be left of their sandboxes. `name` tells lives apart."""
    payloads = PayloadWriter(folder, settings.pop("name", "w0"))
    bubblewrap = BubblewrapProvider(SandboxSettings(directory=str(folder / "sandboxes")))
    provider = settings.pop("provider", bubblewrap)
    server = settings.pop("server", None)
    holder = []
    host = RolloutHost(
        Playground(rollout, score, resume), engines, renderer, provider, payloads, folder,
        lambda event: holder[0].told(event), limits or GenerationLimits(64, 512), "run",
        HostSettings(**({"cancel_grace_s": 0.2} | settings)), server=server,
    )  # fmt: skip
    stage = Stage(host, folder, provider)
    holder.append(stage)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(host.run())
        if server is not None:
            group.create_task(server.run())
        await asyncio.sleep(0)
        yield stage
        host.close()
        if server is not None:
            server.close()
    payloads.close()
    assert await provider.list({}) == []
    assert not bubblewrap.root().exists() or list(bubblewrap.root().iterdir()) == []
