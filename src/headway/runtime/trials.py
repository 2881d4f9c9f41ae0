"""One rollout on its own, as a config says: with its gateway, its judge and shaping, and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.environments.trial import Trial, try_once
from headway.gateway.server import Gateway
from headway.runtime.environment_worker import generation_limits, host_settings
from headway.runtime.rewards import longest_s, reward_stage

if TYPE_CHECKING:
    from headway.config.compose import Config
    from headway.core.protocols import Engine, Environment, SandboxProvider
    from headway.renderers.chat import Renderer


async def try_under(
    config: Config,
    environment: Environment,
    engine: Engine,
    renderer: Renderer,
    provider: SandboxProvider,
    label: str,
    *,
    split: str,
    index: int = 0,
    level: int | None = None,
    temperature: float = 1.0,
) -> Trial:
    """Run and score one rollout; see `try_once`. `label` names its sandboxes, and is no other process's."""
    stage = reward_stage(config)
    try:
        async with Gateway(config.gateway, name=label).serving() as gateway:
            return await try_once(
                environment,
                engine,
                renderer,
                provider,
                generation_limits(config),
                settings=host_settings(config),
                split=split,
                index=index,
                level=level,
                temperature=temperature,
                seed=config.run.seed,
                run_id=label,
                timeout_s=longest_s(config),
                server=gateway,
                stage=stage,
            )
    finally:
        if stage is not None:
            await stage.close()
