"""`headway env try`: one rollout in this process, shown turn by turn.

The scheduler's part is played by the simplest possible one: every sandbox is granted, the rollout is scored
once. Waits for the rollout's end and its score, at most the configured timeouts.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.commands import GrantSandbox, Score, StartRollout
from headway.core.errors import DeadlineError, EnvironmentFault
from headway.core.events import (
    Event,
    RolloutEnded,
    RolloutFailed,
    SandboxLost,
    SandboxWanted,
    Scored,
    ScoreFailed,
    ToolEnded,
)
from headway.core.payload import PayloadWriter, read_payload
from headway.environments.host import HostSettings, RolloutHost
from headway.environments.registry import build
from headway.models.checkpoint import resolve, verify
from headway.renderers.chat import Renderer
from headway.runtime.environment_worker import check_prompts, generation_limits
from headway.runtime.generator_worker import build_engine
from headway.runtime.tasks import make
from headway.runtime.train import say
from headway.sandbox.bubblewrap import BubblewrapProvider

if TYPE_CHECKING:
    from headway.config.compose import Config
    from headway.core.records import Task, TrainingSample

_ROLLOUT, _RUN = "try", "try"


def try_once(config: Config, *, split: str, index: int, level: int | None, temperature: float) -> int:
    """Run, print and score one rollout; returns 0, or 1 when it failed."""
    model_dir = resolve(config.model.path, progress=say)
    verify(model_dir)
    task_id = f"{split}/{index}" if level is None else f"{split}/{index}/{level}"
    with tempfile.TemporaryDirectory(prefix="headway-try-") as folder:
        return asyncio.run(_Tryout(config, model_dir, Path(folder)).run(task_id, temperature))


class _Tryout:
    def __init__(self, config: Config, model_dir: Path, folder: Path) -> None:
        self._config = config
        self._model_dir = model_dir
        self._folder = folder
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def run(self, task_id: str, temperature: float) -> int:
        config = self._config
        environment = build(config.environment.name, config.environment.args, seed=config.run.seed)
        renderer = Renderer(self._model_dir)
        check_prompts(environment, renderer, config)
        provider = BubblewrapProvider(config.sandbox)
        if environment.needs_sandbox:
            await provider.preflight()
        engine = await asyncio.to_thread(build_engine, self._model_dir, config, "generator0", 0)
        payloads = PayloadWriter(self._folder, "try.bin")
        host = RolloutHost(
            environment=environment,
            engines={"generator0": engine},
            renderer=renderer,
            provider=provider,
            payloads=payloads,
            payload_dir=self._folder,
            emit=self._events.put_nowait,
            limits=generation_limits(config),
            run_id=_RUN,
            settings=HostSettings(config.reward.timeout_s, config.environment.cancel_grace_s),
        )
        task = make(environment, task_id)
        say(f"task {task_id} of {environment.name}, level {task.level}: {task.payload}")
        start = StartRollout(
            _ROLLOUT, 0, "try", task_id, "eval", "main", config.run.seed, temperature, "generator0"
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(host.run())
                await asyncio.sleep(0)  # let the host's own group open before work is put into it
                host.start(start, task)
                try:
                    code = await self._follow(host, renderer, task)
                finally:
                    host.close()
        finally:
            await engine.close()
            payloads.close()
        return code

    async def _follow(self, host: RolloutHost, renderer: Renderer, task: Task) -> int:
        config = self._config
        payload = ""
        while True:
            limit_s = config.reward.timeout_s if payload else config.environment.rollout_timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    event = await self._events.get()
            except TimeoutError as error:
                rule = f"environment {config.environment.name} did nothing for {limit_s:g} s"
                raise DeadlineError(rule) from error
            match event:
                case SandboxWanted():
                    host.grant(GrantSandbox(event.rollout, event.attempt, event.sandbox))
                case ToolEnded():
                    say(f"[tool call ended after {event.duration_s:.2f} s: {event.cause}]")
                case SandboxLost():
                    say(f"[sandbox lost: {event.cause}]")
                case RolloutEnded():
                    payload = event.payload
                    _show(read_payload(self._folder, payload).samples, renderer)
                    host.score(Score(_ROLLOUT, 0, 1, task.id, payload), task)
                case Scored():
                    say(f"score {event.reward:g}: {'; '.join(event.reasons) or 'no reasons given'}")
                    return 0
                case RolloutFailed() | ScoreFailed():
                    raise EnvironmentFault(f"{event.cause}: {event.message}")
                case _:
                    continue


def _show(samples: list[TrainingSample], renderer: Renderer) -> None:
    """Print every span of tokens with what the trainer would do with it."""
    for sample in samples:
        begin = 0
        while begin < len(sample.token_ids):
            end = begin
            while end < len(sample.token_ids) and sample.trainable[end] == sample.trainable[begin]:
                end += 1
            ids = sample.token_ids[begin:end]
            kind = "trained" if sample.trainable[begin] else "masked"
            say(f"--- {kind}, {len(ids)} tokens ---")
            say(renderer.decode(ids, skip_special=False))
            if sample.trainable[begin]:
                mean = sum(sample.logprobs[begin:end]) / len(ids)
                say(f"    (mean log-prob {mean:.3f})")
            begin = end
    num_trained = sum(sample.num_trainable for sample in samples)
    num_tokens = sum(len(sample.token_ids) for sample in samples)
    say(f"--- {num_trained} of {num_tokens} tokens would be trained ---")
