"""An environment worker's process: rollouts as coroutines, their sandboxes, and the verifiers.

Consumes commands from the driver; asks the generators for tokens over connections of its own; writes payloads
to its own files. Its events go to the driver. When the driver says stop, every rollout is cancelled and
every sandbox ended before the process leaves.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.commands import (
    Cancel,
    GrantSandbox,
    Park,
    ReleaseSandbox,
    RequestTask,
    Resume,
    Score,
    StartRollout,
)
from headway.core.errors import EnvironmentSetupError
from headway.core.events import CommandRefused, Noticed, RolloutFailed, ScoreFailed, WorkerJoined
from headway.core.payload import PayloadWriter
from headway.core.protocols import EngineCapabilities, Environment
from headway.core.records import KEPT_IDS, ROUTED_EXPERTS, Message
from headway.core.segments import segments
from headway.environments.faults import blamed, describe_exception
from headway.environments.generation import GenerationLimits
from headway.environments.host import HostSettings, RolloutHost
from headway.environments.registry import build
from headway.models.shape import read_shape
from headway.queue.settings import ready_places
from headway.renderers.chat import Renderer
from headway.runtime.engine_client import RemoteEngine
from headway.runtime.job import Job, payload_dir
from headway.runtime.rewards import reward_stage
from headway.runtime.tasks import make, offer
from headway.sandbox.pools import kept_ready, make_pool, share, sweep_left_overs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headway.config.compose import Config
    from headway.runtime.wire import Link

_SYNC_EVERY_S = 1.0
_PROMPTS_CHECKED = 8  # of each split, before anything is generated


async def serve(job: Job, link: Link) -> None:
    """Build the environment, then run rollouts until told to stop."""
    config = job.config
    with blamed("being built"):
        environments = build_all(config)
    stage = reward_stage(config, job.run_dir)
    renderer = Renderer(job.model_dir)
    check_levels(environments, config)
    for environment in environments.values():
        check_prompts(environment, renderer, config)
    provider = make_pool(config.sandbox, job.run_id, _kept_ready(job))
    uses_sandboxes = any(environment.needs_sandbox for environment in environments.values())
    unswept = ""
    if uses_sandboxes:
        unswept = await _sweep(job)
        await provider.preflight()
    can = expected_capabilities(config)
    engines = {replica: RemoteEngine(at, replica, can) for replica, at in job.generators}
    writer = f"{job.name}.{job.lineage}"
    payloads = PayloadWriter(
        payload_dir(job.run_dir), f"{writer}.bin", segments(writer, config.retention.sample_groups)
    )
    host = RolloutHost(
        environment=environments[""],
        engines=engines,
        renderer=renderer,
        provider=provider,
        payloads=payloads,
        payload_dir=payload_dir(job.run_dir),
        emit=lambda event: link.send("event", event),
        limits=replace(generation_limits(config), streams=streams_to_train(config, job.model_dir)),
        run_id=job.run_id,
        settings=host_settings(config),
        sources={name: environment for name, environment in environments.items() if name},
        stage=stage,
    )
    link.send("event", WorkerJoined("environment", job.name))
    if unswept:
        link.send("event", Noticed("sandbox_sweep", unswept))
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(engine.run()) for engine in engines.values()]
        running = tasks.create_task(host.run())
        syncing = tasks.create_task(_sync(payloads))
        if uses_sandboxes:
            tasks.create_task(provider.run())
        await asyncio.sleep(0)  # the host serves before the first command, which may be here already
        while (message := await link.receive()) is not None and message[0] != "stop":
            if message[0] == "command":
                _obey(environments, host, link, message[1])
            elif message[0] == "watch":
                host.watch(watched(message[1]))
        host.close()
        await running
        provider.close()
        syncing.cancel()
        for reader in readers:
            reader.cancel()
        if stage is not None:
            await stage.close()
    payloads.close()


def _kept_ready(job: Job) -> int:
    """Return how many sandboxes this worker keeps ready: all, or its part of the places left to that."""
    config = job.config
    most, workers = kept_ready(config.sandbox), config.environment.workers
    if workers == 1:
        return most
    number = int(job.name.removeprefix("environment"))
    return share(ready_places(config.sandbox.max_live, most, workers), number, workers)


async def _sweep(job: Job) -> str:
    """End what dead processes left; return what to tell when that takes too long, "" else."""
    limit_s = job.config.deadlines.sandbox_s
    try:
        async with asyncio.timeout(limit_s):
            await sweep_left_overs()
    except TimeoutError:
        return (
            f"environment worker {job.name} waited {limit_s:g} s (deadlines.sandbox_s) for the end of the "
            "sandboxes that dead processes left, and goes on; `headway sandbox reap --all-dead` ends them"
        )
    return ""


async def _sync(payloads: PayloadWriter) -> None:
    """Make payloads survive a power cut, as often as the driver does so with the journal."""
    while True:
        await asyncio.sleep(_SYNC_EVERY_S)
        await asyncio.to_thread(payloads.sync)


def _obey(environments: Mapping[str, Environment], host: RolloutHost, link: Link, command: object) -> None:
    """Carry out one command; whatever the environment's `task` raises becomes the command's answer."""
    match command:
        case RequestTask():
            try:
                link.send("event", offer(environments, command))
            except Exception as error:
                environment = environments[command.source]
                text = f"environment {environment.name} raised {describe_exception(error)}"
                target = f"{command.split}/{command.index}"
                link.send("event", CommandRefused("RequestTask", target, text))
        case StartRollout():
            try:
                task = make(environments, command.task_id)
            except Exception as error:
                text, attempt = describe_exception(error), (command.rollout, command.attempt)
                link.send("event", RolloutFailed(*attempt, "environment", "exception", text))
            else:
                host.start(command, task)
        case Score():
            try:
                task = make(environments, command.task_id)
            except Exception as error:
                text, attempt = describe_exception(error), (command.rollout, command.attempt, command.tries)
                link.send("event", ScoreFailed(*attempt, "exception", text))
            else:
                host.score(command, task)
        case Cancel():
            host.cancel(command)
        case Park():
            host.park(command)
        case Resume():
            host.resume(command)
        case GrantSandbox():
            host.grant(command)
        case ReleaseSandbox():
            host.release(command)
        case _:
            raise TypeError(f"an environment worker cannot {type(command).__name__}")


def build_all(config: Config) -> dict[str, Environment]:
    """Return the run's environments by source; "" is the one that is evaluated."""
    seed = config.run.seed
    found = {"": build(config.environment.name, config.environment.args, seed=seed)}
    for name, source in config.source.items():
        found[name] = build(source.environment or config.environment.name, source.args, seed=seed)
    return found


def check_levels(environments: Mapping[str, Environment], config: Config) -> None:
    """Raise EnvironmentSetupError when the curriculum names a level that an environment does not have."""
    levels = {name: source.levels or config.curriculum.levels for name, source in config.source.items()}
    for name, wanted in (levels or {"": config.curriculum.levels}).items():
        key = f"source.{name}.levels" if name and config.source[name].levels else "curriculum.levels"
        for level in wanted:
            try:
                environments[name].task("train", 0, level)
            except Exception as error:  # the environment's own code may raise anything
                rule = f"environment {environments[name].name} has no task of level {level}: {error}"
                remedy = "Leave the level out; `headway env list` shows what there is"
                raise EnvironmentSetupError(rule, remedy=remedy, key=key) from error


def generation_limits(config: Config) -> GenerationLimits:
    """Return what bounds an answer."""
    settings = config.generator
    cut = settings.top_p, settings.top_k, settings.min_p
    return GenerationLimits(settings.max_answer_tokens, settings.max_context_tokens, *cut)


def streams_to_train(config: Config, model_dir: Path) -> tuple[str, ...]:
    """Return the streams that the trainer needs beside the tokens."""
    replays = (
        config.trainer.replay_routing
        and not config.generator.exact_context_tokens
        and read_shape(model_dir).experts is not None
    )
    return (*[ROUTED_EXPERTS] * replays, *[KEPT_IDS] * config.generator.truncates)


def host_settings(config: Config) -> HostSettings:
    """Return the host's time limits, and what it watches for on behalf of pruning."""
    pruning = config.pruning
    return HostSettings(
        config.reward.timeout_s,
        config.environment.cancel_grace_s,
        score_max_wait_s=config.reward.max_wait_s,
        watch_tokens=watched(pruning.max_tokens),
        watch_repetition=pruning.max_repetition or 0.0,
        repetition_window=pruning.repetition_window,
        value_hook=pruning.value_hook,
    )


def watched(max_tokens: int) -> int:
    """Return the tokens of a rollout that are told of where `max_tokens` may be sampled; 0 for no limit."""
    return max_tokens + 1 if max_tokens else 0


def expected_capabilities(config: Config) -> EngineCapabilities:
    """Return what the embedded engine offers under this configuration."""
    settings = config.generator
    return EngineCapabilities(
        settings.max_running, settings.max_context_tokens, "sampling", True, True, False, True, True
    )


def check_prompts(environment: Environment, renderer: Renderer, config: Config) -> None:
    """Raise EnvironmentSetupError when a first prompt fails or leaves no room for an answer."""
    limit = config.generator.max_context_tokens
    for split in ("train", "eval"):
        with blamed(f"posing its first {split} tasks"):
            lengths = prompt_lengths(environment, renderer, split, _PROMPTS_CHECKED)
        for index, length in enumerate(lengths):
            if length >= limit:
                raise no_room(environment, split, index, length, limit)


def prompt_lengths(environment: Environment, renderer: Renderer, split: str, most: int) -> list[int]:
    """Return the tokens of the first prompts of a split, at most `most` of them."""
    system = [] if environment.system_prompt is None else [Message("system", environment.system_prompt)]
    size = environment.num_tasks(split)
    tasks = [environment.task(split, at, None) for at in range(most if size is None else min(size, most))]
    return [len(renderer.first_prompt([*system, *environment.prompt(task)])) for task in tasks]


def no_room(
    environment: Environment, split: str, index: int, num_tokens: int, limit: int
) -> EnvironmentSetupError:
    """Return the error of a prompt that fills the context."""
    return EnvironmentSetupError(
        f"the prompt of {split} task {index} of environment {environment.name} has {num_tokens} tokens and "
        f"leaves no room for an answer in a context of {limit}",
        remedy="Raise generator.max_context_tokens or make the tasks shorter (environment.args).",
        key="generator.max_context_tokens",
    )
