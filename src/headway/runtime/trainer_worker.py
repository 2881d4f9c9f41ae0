"""The trainer's process.

Consumes Train, Publish and Checkpoint from the driver. One thread computes them in their order and answers
each by its event, so that the process goes on saying that it is alive; a thread count from the driver takes
effect between two micro-batches of the step in progress.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.codec import finite_only
from headway.core.commands import Checkpoint, Publish, Train
from headway.core.events import CheckpointDone, Event, StepEnded, VersionPublished, WorkerJoined
from headway.runtime.job import Job, checkpoint_dir, payload_dir

if TYPE_CHECKING:
    from headway.core.protocols import Trainer
    from headway.runtime.wire import Link


async def serve(job: Job, link: Link) -> None:
    """Load the model, then obey until told to stop."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer") as compute:
        trainer = await loop.run_in_executor(compute, _build, job)
        link.send("event", WorkerJoined("trainer", job.name))

        async def obey(command: Train | Publish | Checkpoint) -> None:
            link.send("event", await loop.run_in_executor(compute, _obey, trainer, command))

        async with asyncio.TaskGroup() as tasks:
            while (message := await link.receive()) is not None and message[0] != "stop":
                if message[0] == "threads":
                    trainer.set_threads(message[1])
                else:
                    tasks.create_task(obey(message[1]))


def _build(job: Job) -> Trainer:
    import dataclasses

    from headway.trainer.local import LocalTrainer

    config = job.config
    trainer = LocalTrainer(
        job.model_dir,
        dataclasses.replace(config.trainer, threads=job.threads),
        config.algorithm,
        payload_dir=payload_dir(job.run_dir),
        weights_dir=job.weights_dir,
        checkpoint_dir=checkpoint_dir(job.run_dir),
        seed=config.run.seed,
        keep_checkpoints=config.checkpoint.keep,
    )
    if job.checkpoint is not None:
        trainer.load(str(job.checkpoint))
    return trainer


def _obey(trainer: Trainer, command: Train | Publish | Checkpoint) -> Event:
    began = stopwatch()
    match command:
        case Train():
            result = trainer.step(command.rows, command.lr_scale)
            compute_s = stopwatch() - began
            return StepEnded(
                command.batch,
                command.step,
                compute_s,
                result.num_tokens,
                result.num_trained_tokens,
                finite_only(result.metrics),
            )
        case Publish():
            manifest, num_bytes = trainer.publish(command.lineage, command.number)
            return VersionPublished(command.lineage, command.number, stopwatch() - began, manifest, num_bytes)
        case Checkpoint():
            path = trainer.save(command.step)
            return CheckpointDone(command.step, path, stopwatch() - began)
