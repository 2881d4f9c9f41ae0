"""The trainer's process.

Consumes TrainPart, Train, Publish, Checkpoint and Rollback from the driver. One thread computes them in
their order and answers each by its event, so that the process goes on saying that it is alive; a thread count
from the driver takes effect between two micro-batches of the step in progress. A checkpoint is copied there
and written by a second thread while the first goes on; a Rollback waits for the checkpoint that is being
written.

Checkpoints beyond those that the run keeps go when the next one is begun, not when one is done: what the
scheduler can ask to roll back to is there as long as it may ask.

Where versions are handed over in shared memory and that is full, they go to the run directory from then on.
What has no room there either becomes DiskFull, and a checkpoint that was not written leaves nothing behind.

With `trainer.ranks` above 1 this process is rank 0 of the trainer's, and starts the others.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.codec import finite_only
from headway.core.commands import Checkpoint, Publish, Rollback, Train, TrainPart
from headway.core.errors import DiskFullError
from headway.core.events import (
    CheckpointDone,
    DiskFull,
    Event,
    Noticed,
    PartEnded,
    RolledBack,
    StepEnded,
    VersionPublished,
    WorkerJoined,
)
from headway.runtime.agreement import disagreement
from headway.runtime.job import Job, checkpoint_dir, payload_dir, weights_dir
from headway.trainer.checkpoints import checkpoint_path, num_bytes

if TYPE_CHECKING:
    from headway.core.protocols import Trainer
    from headway.runtime.wire import Link
    from headway.trainer.local import LocalTrainer
    from headway.trainer.ranks import Ranks

TrainerCommand = TrainPart | Train | Publish | Checkpoint | Rollback


async def serve(job: Job, link: Link) -> None:
    """Load the model, then obey until told to stop."""
    loop = asyncio.get_running_loop()
    with (
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer") as compute,
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint") as writer,
    ):

        def notice(event: Event) -> None:
            loop.call_soon_threadsafe(link.send, "event", event)

        desk = await loop.run_in_executor(compute, Desk, job, writer, notice)
        link.send("event", WorkerJoined("trainer", job.name))

        async def obey(command: TrainerCommand) -> None:
            try:
                answer = await loop.run_in_executor(compute, desk.obey, command)
                if isinstance(answer, Future):
                    answer = await asyncio.wrap_future(answer)
            except DiskFullError as error:
                answer = DiskFull(job.name, str(error))
            link.send("event", answer)

        async with asyncio.TaskGroup() as tasks:
            while (message := await link.receive()) is not None and message[0] != "stop":
                if message[0] == "threads":
                    desk.set_threads(message[1])
                elif message[0] == "keep":
                    desk.keep = message[1]
                else:
                    tasks.create_task(obey(message[1]))
        await loop.run_in_executor(compute, desk.leave)


class Desk:
    """Carries out commands, in the computing thread."""

    def __init__(
        self, job: Job, writer: ThreadPoolExecutor, notice: Callable[[Event], object] = lambda event: None
    ) -> None:
        self.trainer = build_trainer(job)
        self.keep: tuple[int, ...] = ()  # steps whose checkpoints stay beside those that the settings name
        self._notice = notice
        self._job = job
        self._writer = writer
        self._lineage = job.lineage
        self._gathered_s = 0.0  # computing of the parts of the step that was begun
        self._saved: int | None = None  # newest checkpoint of this process
        self._writing: Future[Event] | None = None
        self._told_mismatch = False
        if job.checkpoint is not None:
            self._go_on_from(job.checkpoint)

    def set_threads(self, num_threads: int) -> None:
        """Compute with this many threads from the next micro-batch on; callable from any thread."""
        self._job = dataclasses.replace(self._job, threads=num_threads)
        self.trainer.set_threads(num_threads)

    def obey(self, command: TrainerCommand) -> Event | Future[Event]:
        """Carry out a command; a Checkpoint's answer comes once it is written."""
        began = stopwatch()
        match command:
            case TrainPart():
                num_tokens = self.trainer.gather(command.rows)
                compute_s = stopwatch() - began
                self._gathered_s += compute_s
                return PartEnded(command.batch, command.part, compute_s, num_tokens)
            case Train():
                gathered_s, self._gathered_s = self._gathered_s, 0.0
                ended = take_step(self.trainer, command, gathered_s)
                exact = self._job.config.generator.numerics == "exact"
                if not self._told_mismatch and (text := disagreement(ended.metrics, exact=exact)):
                    self._told_mismatch = True
                    self._notice(Noticed("mismatch", text))
                return ended
            case Publish():
                manifest, size = self._publish(command)
                publish_s = stopwatch() - began
                return VersionPublished(command.lineage, command.number, publish_s, manifest, size)
            case Checkpoint():
                return self._save(command.step)
            case Rollback():
                return self._roll_back(command)

    def retain(self) -> None:
        """Drop the checkpoints beyond those that are kept."""
        if self._writing is not None:
            self._writing.exception()
        if self._saved is not None:
            self.trainer.retain(self._saved, self.keep)

    def leave(self) -> None:
        """Drop the checkpoints beyond those that are kept, and end the other ranks."""
        self.retain()
        self.trainer.close()

    def _publish(self, command: Publish) -> tuple[str, int]:
        try:
            return self.trainer.publish(command.lineage, command.number)
        except DiskFullError as error:
            elsewhere = weights_dir(self._job.run_dir)
            if self._job.weights_dir == elsewhere:
                raise
            text = f"{error.rule}; versions are handed over in {elsewhere} from now on, which is slower"
            self._notice(Noticed("weights_moved", text))
        self._job = dataclasses.replace(self._job, weights_dir=elsewhere)
        self.trainer.publish_to(elsewhere)
        return self.trainer.publish(command.lineage, command.number)

    def _save(self, step: int) -> Future[Event]:
        began = stopwatch()
        self.retain()
        write = self.trainer.capture(step, lineage=self._lineage)

        def finish() -> Event:
            path = write()
            self._saved = step
            return CheckpointDone(step, path, stopwatch() - began, num_bytes(Path(path)))

        self._writing = self._writer.submit(finish)
        return self._writing

    def _roll_back(self, command: Rollback) -> Event:
        if self._writing is not None:
            self._writing.exception()  # wait: it must not appear after its branch is lost
        self._saved = None
        self._gathered_s = 0.0
        if command.step:
            self._go_on_from(checkpoint_path(checkpoint_dir(self._job.run_dir), command.step))
        else:
            self.trainer.close()
            self.trainer = build_trainer(self._job)
            self.trainer.discard_after(0)
        self._lineage = command.lineage
        return RolledBack(command.lineage, command.step)

    def _go_on_from(self, checkpoint: Path) -> None:
        self.trainer.load(str(checkpoint))
        self.trainer.discard_after(int(checkpoint.name.rpartition("-")[2]))


def take_step(trainer: Trainer, command: Train, gathered_s: float = 0.0) -> StepEnded:
    """Take one optimizer step and say what it did, in JSON's words; its parts took `gathered_s` before it."""
    began = stopwatch()
    result = trainer.step(command.rows, command.lr_scale, num_gathered=command.num_gathered)
    return StepEnded(
        command.batch,
        command.step,
        gathered_s + stopwatch() - began,
        result.num_tokens,
        result.num_trained_tokens,
        finite_only(result.metrics),
        gathered_s,
    )


def build_trainer(job: Job) -> Trainer:
    """Return a trainer at the run's beginning: the model's own weights and a fresh optimizer."""
    if job.config.trainer.ranks > 1:
        from headway.runtime.ranked import RankedTrainer

        return RankedTrainer(job, local_trainer)
    return local_trainer(job)


def local_trainer(job: Job, ranks: Ranks | None = None) -> LocalTrainer:
    """Return the trainer of this process: the whole of it, or one rank's part.

    Raises UserError when the run streams and its algorithm needs whole batches.
    """
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
        keep_every_steps=config.checkpoint.keep_every_steps,
        exact_context_tokens=config.generator.exact_context_tokens,
        ranks=ranks,
    )
    if config.queue.stream:
        trainer.check_gathers()
    return trainer
