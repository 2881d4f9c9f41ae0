"""`headway env try`: one rollout in this process, shown turn by turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headway.core.events import Scored
from headway.environments.contract import Judged, check_environment
from headway.environments.faults import blamed
from headway.environments.registry import build, may_need_sandbox
from headway.renderers.chat import Renderer
from headway.runtime.environment_worker import check_prompts
from headway.runtime.generator_worker import build_engine
from headway.runtime.model import model_directory
from headway.runtime.train import say
from headway.runtime.trials import try_under
from headway.sandbox.leases import own_label
from headway.sandbox.pools import make_pool
from headway.telemetry.terminal import console
from headway.telemetry.transcript_text import TranscriptWriter
from headway.telemetry.visible import visible_line

if TYPE_CHECKING:
    from pathlib import Path

    from headway.config.compose import Config
    from headway.environments.trial import Trial


def try_once(config: Config, *, split: str, index: int, level: int | None, temperature: float) -> int:
    """Run, print and score one rollout; returns 0, or 1 when it failed."""
    model_dir = model_directory(config)
    trial = asyncio.run(_run(config, model_dir, split, index, level, temperature))
    _show(trial)
    return 0 if isinstance(trial.score, Scored) else 1


def check_contract(config: Config) -> list[Judged]:
    """Return what an environment keeps of its contract, without a model."""
    return asyncio.run(_check_contract(config))


async def _check_contract(config: Config) -> list[Judged]:
    name, args = config.environment.name, config.environment.args
    if not may_need_sandbox(name, args):
        return await check_environment(name, args, config.run.seed)
    provider = make_pool(config.sandbox, own_label("check"))
    await provider.preflight()
    return await check_environment(name, args, config.run.seed, provider)


async def _run(
    config: Config, model_dir: Path, split: str, index: int, level: int | None, temperature: float
) -> Trial:
    with blamed("being built"):
        environment = build(config.environment.name, config.environment.args, seed=config.run.seed)
    renderer = Renderer(model_dir)
    check_prompts(environment, renderer, config)
    label = own_label("try")
    provider = make_pool(config.sandbox, label)
    if environment.needs_sandbox:
        await provider.preflight()
    engine = await asyncio.to_thread(build_engine, model_dir, config, "engine", 0)
    try:
        return await try_under(
            config,
            environment,
            engine,
            renderer,
            provider,
            label,
            split=split,
            index=index,
            level=level,
            temperature=temperature,
        )
    finally:
        await engine.close()


def _show(trial: Trial) -> None:
    """Print the task, and the rollout as `headway rollouts` shows it."""
    say(f"task {trial.task.id}, level {trial.task.level}: {visible_line(str(trial.task.payload))}")
    screen = console()
    writer = TranscriptWriter(marks=screen.color_system is None, full=True, width=screen.width)
    for line in writer.lines(trial.shown):
        screen.print(line)
