"""A generator replica's process: the embedded engine, served to environment workers and to the driver.

Consumes requests from environment workers, which connect to its address (tokens never pass through the
driver), and ApplyVersion and thread counts from the driver. A request's answer goes back on the connection
that it came from; when that connection closes, its requests are aborted.

To start a generator that died anew: the same Job with the next epoch, once the old process is gone. It
listens at the same address before it says ReplicaJoined, and environment workers connect by themselves. Until
then their requests end as lost, and their rollouts park themselves (RolloutParked, engine_lost) with the
tokens they have. It begins with version 0 of the model; the driver's ApplyVersion brings the present one, and
requests that are there before that wait until the driver says that the replica is usable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from headway.core.events import ReplicaChanged, ReplicaJoined, VersionApplied
from headway.core.protocols import Engine, GenerateRequest
from headway.runtime.wire import Link, listen

if TYPE_CHECKING:
    from headway.config.compose import Config
    from headway.core.commands import ApplyVersion
    from headway.generator.engine import EmbeddedEngine
    from headway.runtime.job import Job

_STATS_EVERY_S = 5.0


async def serve(job: Job, link: Link) -> None:
    """Load the model, then serve until told to stop."""
    engine = await asyncio.to_thread(build_engine, job.model_dir, job.config, job.name, job.lineage)
    engine.set_threads(job.threads)
    max_running = engine.capabilities().max_running
    usable = asyncio.Event()
    if job.epoch == 0:
        usable.set()
    async with asyncio.TaskGroup() as tasks, serve_peers(engine, job.address, tasks, usable):
        link.send("event", ReplicaJoined(job.name, job.epoch, job.lineage, 0, max_running))
        load = tasks.create_task(_tell_load(engine, job, link))
        while (message := await link.receive()) is not None and message[0] != "stop":
            if message[0] == "threads":
                engine.set_threads(message[1])
            elif message[0] == "usable":
                usable.set()
            else:
                await _apply(engine, job, message[1], link)
        load.cancel()
    await engine.close()


def build_engine(model_dir: Path, config: Config, replica: str, lineage: int) -> EmbeddedEngine:
    """Load a checkpoint into an engine whose version 0 it is."""
    from headway.generator.engine import EmbeddedEngine
    from headway.models.load import load_state
    from headway.renderers.chat import Renderer
    from headway.weights.read import WeightReader

    if config.generator.exact_context_tokens:
        return _exact_engine(model_dir, config, replica, lineage)
    shape, state = load_state(model_dir)
    return EmbeddedEngine(
        state,
        shape,
        config.generator,
        replica=replica,
        decode_text=Renderer(model_dir).decode,
        read_weights=WeightReader(state).read,
        lineage=lineage,
        number=0,
    )


def _exact_engine(model_dir: Path, config: Config, replica: str, lineage: int) -> EmbeddedEngine:
    """Load a checkpoint as the trainer loads it, for an engine that computes as the trainer does."""
    from headway.generator.engine import EmbeddedEngine
    from headway.models.load import load_causal_lm
    from headway.models.shape import read_shape
    from headway.renderers.chat import Renderer
    from headway.trainer.exact import ExactPolicy

    model = load_causal_lm(model_dir)
    policy = ExactPolicy(model, config.trainer, config.run.seed, config.generator.exact_context_tokens)
    if (cores := len(os.sched_getaffinity(0))) > 1:
        policy.check_threads(cores)

    def nothing(manifest: str) -> NoReturn:
        raise AssertionError(f"an exact engine reads {manifest} by its forward pass")

    return EmbeddedEngine(
        {},
        read_shape(model_dir),
        config.generator,
        replica=replica,
        decode_text=Renderer(model_dir).decode,
        read_weights=nothing,
        lineage=lineage,
        number=0,
        exact=policy,
    )


async def _apply(engine: Engine, job: Job, command: ApplyVersion, link: Link) -> None:
    pause_s = await engine.apply(command.lineage, command.number, command.manifest, command.kv)
    link.send("event", VersionApplied(job.name, job.epoch, command.lineage, command.number, pause_s))


async def _tell_load(engine: Engine, job: Job, link: Link) -> None:
    while True:
        await asyncio.sleep(_STATS_EVERY_S)
        load = engine.stats()
        link.send(
            "event",
            ReplicaChanged(
                job.name,
                job.epoch,
                load.num_running,
                load.num_waiting,
                load.kv_used_fraction,
                load.tokens_per_s,
                load.num_preemptions,
            ),
        )


@asynccontextmanager
async def serve_peers(
    engine: Engine, at: str, tasks: asyncio.TaskGroup, usable: asyncio.Event | None = None
) -> AsyncGenerator[None]:
    """Listen at an address, and serve whoever connects, once it is usable, until the body is left."""
    helpers: set[asyncio.Task[None]] = set()

    def met(peer: Link) -> None:
        helper = tasks.create_task(_serve_peer(engine, peer, usable))
        helpers.add(helper)
        helper.add_done_callback(helpers.discard)

    server = await listen(at, met)
    try:
        yield
    finally:
        server.close()
        for helper in helpers:
            helper.cancel()


async def _serve_peer(engine: Engine, peer: Link, usable: asyncio.Event | None) -> None:
    if usable is not None:
        await usable.wait()
    open_requests: set[str] = set()

    async def answer(request: GenerateRequest) -> None:
        open_requests.add(request.request_id)
        async for chunk in engine.generate(request):
            peer.send("chunk", request.request_id, chunk)
        open_requests.discard(request.request_id)

    with closing(peer):
        async with asyncio.TaskGroup() as tasks:
            while (message := await peer.receive()) is not None:
                match message:
                    case ("generate", GenerateRequest() as request):
                        tasks.create_task(answer(request))
                    case ("abort", ids):
                        await engine.abort(ids)
                    case ("end_session", session):
                        await engine.end_session(session)
                    case _:
                        raise TypeError(f"unknown message {message[0]!r} from an environment worker")
            await engine.abort(sorted(open_requests))
