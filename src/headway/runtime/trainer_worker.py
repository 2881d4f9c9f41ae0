"""The trainer's process.

Consumes Train, Publish and Checkpoint from the driver, one at a time, in a thread so that the process goes
on saying that it is alive. Each is answered by its event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.commands import Checkpoint, Publish, Train
from headway.core.events import CheckpointDone, Event, StepEnded, VersionPublished, WorkerJoined
from headway.runtime.job import Job, checkpoint_dir, payload_dir

if TYPE_CHECKING:
    from headway.core.protocols import Trainer
    from headway.runtime.wire import Link


async def serve(job: Job, link: Link) -> None:
    """Load the model, then obey until told to stop."""
    trainer = await asyncio.to_thread(_build, job)
    link.send("event", WorkerJoined("trainer", job.name))
    while (message := await link.receive()) is not None and message[0] != "stop":
        if message[0] == "threads":
            await asyncio.to_thread(trainer.set_threads, message[1])
        else:
            link.send("event", await asyncio.to_thread(_obey, trainer, message[1]))


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
            result = trainer.step(command.rows)
            compute_s = stopwatch() - began
            return StepEnded(
                command.batch,
                command.step,
                compute_s,
                result.num_tokens,
                result.num_trained_tokens,
                result.metrics,
            )
        case Publish():
            manifest, num_bytes = trainer.publish(command.lineage, command.number)
            return VersionPublished(command.lineage, command.number, stopwatch() - began, manifest, num_bytes)
        case Checkpoint():
            path = trainer.save(command.step)
            return CheckpointDone(command.step, path, stopwatch() - began)
