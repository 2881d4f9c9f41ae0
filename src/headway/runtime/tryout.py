"""`headway env try`: one rollout in this process, shown turn by turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headway.core.events import Scored, ToolEnded
from headway.environments.registry import build
from headway.environments.trial import Trial
from headway.environments.trial import try_once as run_trial
from headway.renderers.chat import Renderer
from headway.runtime.environment_worker import check_prompts, generation_limits, host_settings
from headway.runtime.generator_worker import build_engine
from headway.runtime.model import model_directory
from headway.runtime.train import say
from headway.sandbox.bubblewrap import BubblewrapProvider

if TYPE_CHECKING:
    from pathlib import Path

    from headway.config.compose import Config


def try_once(config: Config, *, split: str, index: int, level: int | None, temperature: float) -> int:
    """Run, print and score one rollout; returns 0, or 1 when it failed."""
    model_dir = model_directory(config)
    trial = asyncio.run(_run(config, model_dir, split, index, level, temperature))
    _show(trial)
    return 0 if isinstance(trial.score, Scored) else 1


async def _run(
    config: Config, model_dir: Path, split: str, index: int, level: int | None, temperature: float
) -> Trial:
    environment = build(config.environment.name, config.environment.args, seed=config.run.seed)
    renderer = Renderer(model_dir)
    check_prompts(environment, renderer, config)
    provider = BubblewrapProvider(config.sandbox)
    if environment.needs_sandbox:
        await provider.preflight()
    limits = host_settings(config)
    engine = await asyncio.to_thread(build_engine, model_dir, config, "engine", 0)
    try:
        return await run_trial(
            environment,
            engine,
            renderer,
            provider,
            generation_limits(config),
            settings=limits,
            split=split,
            index=index,
            level=level,
            temperature=temperature,
            seed=config.run.seed,
            timeout_s=config.environment.rollout_timeout_s + limits.score_timeout_s + limits.cancel_grace_s,
        )
    finally:
        await engine.close()


def _show(trial: Trial) -> None:
    """Print the task, every run of tokens with what the trainer would do with it, and the score."""
    say(f"task {trial.task.id}, level {trial.task.level}: {trial.task.payload}")
    for event in trial.events:
        if isinstance(event, ToolEnded):
            say(f"[tool call after turn {event.turn + 1}: {event.duration_s:.2f} s, {event.cause}]")
    for number, branch in enumerate(trial.branches, 1):
        if len(trial.branches) > 1:
            say(f"=== branch {number} ===")
        for piece in branch:
            say(
                f"--- {'trained' if piece.trained else 'masked'}, {piece.num_tokens} tokens ---\n{piece.text}"
            )
        num_trained = sum(piece.num_tokens for piece in branch if piece.trained)
        say(f"--- {num_trained} of {sum(piece.num_tokens for piece in branch)} tokens would be trained ---")
    if trial.failure:
        say(f"failed: {trial.failure}")
    elif isinstance(trial.score, Scored):
        say(f"score {trial.score.reward:g}: {'; '.join(trial.score.reasons) or 'no reasons given'}")
    elif trial.score is not None:
        say(f"not scored ({trial.score.cause}): {trial.score.message}")
