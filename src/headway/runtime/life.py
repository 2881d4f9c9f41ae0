"""One life of a run: workers up, driver loop, workers down, whatever happens.

Consumes a prepared run (`Prepared`). Ctrl-C once asks the scheduler to stop; twice ends at once. In either
case no process and no sandbox is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headway.algorithms.advantages.signal import signal_function
from headway.config.compose import Config
from headway.config.stages import Change
from headway.core.clock import RunClock
from headway.core.errors import DiskFullError, HeadwayError, SandboxError, WorkerDiedError
from headway.core.events import CheckpointDone, Event, Noticed, StopAsked
from headway.matching.control import Controller
from headway.matching.memory import checkpoint_bytes, handover_bytes
from headway.models.load import model_facts
from headway.queue.scheduler import Scheduler
from headway.queue.verdict import verdict_function
from headway.runtime import directory, reserve, retention, snapshots
from headway.runtime.control import STOP, Control, control_address
from headway.runtime.crew import Crew, Death, Worker
from headway.runtime.housekeeper import Housekeeper, Tidy
from headway.runtime.job import Job, Role, checkpoint_dir, payload_dir, weights_dir
from headway.runtime.kept import best_checkpoint
from headway.runtime.live import LiveDriver, Share, Threads
from headway.runtime.model import say_aside
from headway.runtime.rewards import group_reward
from headway.runtime.view import View
from headway.runtime.wire import address
from headway.sandbox.pools import sweep_left_overs
from headway.sandbox.providers import make_provider
from headway.telemetry.journal import read_journal
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics

if TYPE_CHECKING:
    from headway.core.commands import Finish, RestartWorker
    from headway.rewards.group import GroupReward

SHARED_MEMORY = Path("/dev/shm")
_MAX_READ_AGAIN = 32 << 20  # bytes of a journal that is read once more at the end: some seconds
EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


@dataclass(slots=True)
class Prepared:
    """Everything that one life starts from."""

    config: Config
    run_dir: Path
    run_id: str
    model_dir: Path
    scheduler: Scheduler
    controller: Controller
    journal: JournalWriter
    metrics: RunMetrics
    first: tuple[Event, ...]  # RunStarted; or RunResumed, and what changed since
    next_seq: int
    clock_offset_s: float
    lineage: int
    checkpoint: Path | None
    view: View
    earlier: tuple[Change, ...] = ()  # settings that changed since the run began

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self.view.say(line)


def calm_collector() -> None:
    """Let Python look for circles of garbage rarely: states and events of many rollouts hold none.

    A full look at the objects of 100,000 rollouts takes long, and by default it comes often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def live(prepared: Prepared) -> int:
    """Run one life to its end and return the command's exit code.

    Raises the original error of a worker that died.
    """
    with contextlib.closing(prepared.view):
        return _live(prepared)


def _live(prepared: Prepared) -> int:
    calm_collector()
    run_dir, run = prepared.run_dir, shlex.quote(str(prepared.run_dir))
    record = directory.LifeRecord(
        os.getpid(), prepared.run_id, str(_weights_dir(prepared)), directory.this_host()
    )
    directory.begin_life(run_dir, record)
    with ExitStack() as ending:  # from the last to the first, whatever one of them raises
        ending.callback(directory.end_life, run_dir)
        ending.callback(_write_summary, prepared)
        ending.callback(prepared.journal.close)
        ending.callback(sweep, prepared.config, record, run_dir, prepared.say)
        try:
            Path(record.weights_dir).mkdir(mode=0o700, exist_ok=True)
            finish, death = asyncio.run(_Life(prepared, Path(record.weights_dir)).run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            prepared.say(f"stopped at once; `headway resume {run}` goes on from the last checkpoint")
            return EXIT_INTERRUPTED
        except (DiskFullError, BaseExceptionGroup) as error:  # no room to journal how it ended
            if not isinstance(first_of(error), DiskFullError):
                raise
            prepared.say(f"error: {first_of(error)}")
            return EXIT_FAILED
    if finish.failed:
        goes_on = "nothing in it is finished"
        if prepared.metrics.checkpoints:
            goes_on = f"`headway resume {run}` goes on from its last checkpoint"
        elif prepared.metrics.num_rollouts:
            goes_on = f"`headway resume {run}` goes on from the beginning, with what is finished"
        prepared.say(f"the run stays in {run_dir}; {goes_on}")
        if death is not None and death.cause in finish.message:
            raise _original(death)
        prepared.say(f"error: {finish.message}")
        return EXIT_FAILED
    for line in (*advice_lines(prepared), *next_steps(finish, prepared)):
        prepared.say(line)
    in_order = finish.message == STOP and not prepared.config.eval.only  # else the result is missing
    return EXIT_INTERRUPTED if finish.outcome == "interrupted" and not in_order else EXIT_OK


def advice_lines(prepared: Prepared) -> list[str]:
    """Return the findings that matter most about a run that is over, a line each.

    They are read from the journal; of one that is long `headway advise` says it when asked.
    """
    run_dir, run = prepared.run_dir, shlex.quote(str(prepared.run_dir))
    if prepared.config.eval.only or not prepared.metrics.steps.steps_ended:
        return []
    if (run_dir / directory.JOURNAL).stat().st_size > _MAX_READ_AGAIN:
        return [f"what limited it: headway advise {run}"]
    from headway.matching.advice.reading import Reading
    from headway.matching.advise import advice_of
    from headway.matching.advise_text import short_lines

    return short_lines(advice_of(Reading.of(read_journal(run_dir))), run)


def next_steps(finish: Finish, prepared: Prepared) -> list[str]:
    """Return what a person may do with a run that ended in order, on one line."""
    run_dir = prepared.run_dir
    if prepared.config.eval.only:
        return []
    if finish.outcome == "interrupted":
        return [f"`headway resume {run_dir}` goes on"]
    if not prepared.metrics.steps.steps_ended:
        return []
    return [
        f"look at it: headway report {run_dir}; headway rollouts {run_dir} --worst; "
        f"headway export {run_dir} DIR"
    ]


def sweep(
    config: Config, record: directory.LifeRecord, run_dir: Path, say: Callable[[str], None] = say_aside
) -> None:
    """Remove what only a life needs: its sandboxes, and the versions that it handed over.

    Sandboxes that cannot be ended are told of by `say`: they must not hide how the life itself ended.
    """
    try:
        asyncio.run(_end_sandboxes(config, record.run_id))
    except (SandboxError, OSError) as error:
        say(f"warning: a sandbox could not be ended: {error}. `headway sandbox reap --all-dead` tries again")
    shutil.rmtree(record.weights_dir, ignore_errors=True)
    shutil.rmtree(weights_dir(run_dir), ignore_errors=True)


async def _end_sandboxes(config: Config, run_id: str) -> None:
    await make_provider(config.sandbox).reap(run_id)
    await sweep_left_overs(run_id)  # of workers that were killed


def first_of(error: BaseException) -> BaseException:
    """Return the first error in nested groups of them."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return first_of(group.exceptions[0])
    return error


def _write_summary(prepared: Prepared) -> None:
    """Write the summary; a report has it from the journal all the same, so that a failure is no fault."""
    reserve.give_up(prepared.run_dir)
    try:
        directory.write_summary(prepared.run_dir, prepared.metrics.summary())
    except OSError as error:
        prepared.say(
            f"warning: {prepared.run_dir / directory.SUMMARY} cannot be written: {error.strerror}; "
            f"`headway report {shlex.quote(str(prepared.run_dir))}` has what it would hold"
        )


def _original(death: Death) -> HeadwayError:
    """Return the dead worker's own error; what it said last is a note on it."""
    name = f"{death.job.role} worker {death.job.name}"
    error = death.error or WorkerDiedError(f"{name} died: {death.cause}")
    error.add_note(f"--- the last words of {name} ---\n{death.trace.rstrip()}")
    if death.place:
        error.add_note(f"error: {death.cause}, raised at {death.place}")
    return error


def _weights_dir(prepared: Prepared) -> Path:
    """Return where versions are handed over: shared memory where enough is free, else the run directory."""
    if fits_shared_memory(handover_bytes(model_facts(prepared.model_dir), prepared.config)):
        return SHARED_MEMORY / f"headway-weights-{prepared.run_id}"
    return weights_dir(prepared.run_dir.absolute())


def _checkpoint_bytes(prepared: Prepared) -> int:
    """Return what a checkpoint takes: the newest one, or what the trained weights and the optimizer make."""
    if known := [num_bytes for num_bytes in prepared.metrics.checkpoints.values() if num_bytes]:
        return known[-1]
    return checkpoint_bytes(model_facts(prepared.model_dir), prepared.config)


def fits_shared_memory(num_bytes: int) -> bool:
    """Say whether shared memory is there, may be written to, and has room."""
    shared = SHARED_MEMORY
    return shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > num_bytes


class _Life:
    def __init__(self, prepared: Prepared, weights_dir: Path) -> None:
        self._prepared = prepared
        self._weights_dir = weights_dir
        self._threads = divide_cores(prepared.config)
        self._stops_asked = 0
        self._driver: LiveDriver
        self._channel: Control
        self._housekeeper: Housekeeper
        self._crew: Crew
        self._tasks: asyncio.TaskGroup

    async def run(self) -> tuple[Finish, Death | None]:
        prepared = self._prepared
        clock = RunClock(prepared.clock_offset_s)
        driver = LiveDriver(
            prepared.scheduler,
            prepared.journal,
            clock,
            prepared.metrics,
            next_seq=prepared.next_seq,
            advantages=signal_function(prepared.config.algorithm),
            verdict=verdict_function(prepared.config.acceptance),
            groups=self._group_rewards(),
            controller=prepared.controller,
            changed=lambda event: self._channel.took_effect(event),
            threads=self._threads,
            restart=self._restart,
            checkpointed=self._checkpointed,
            keep=self._best_checkpoint,
            give_up_reserve=lambda: reserve.give_up(prepared.run_dir),
            view=prepared.view,
        )
        self._driver = driver
        self._channel = Control(
            prepared.run_dir / directory.CONFIG, prepared.earlier, driver.inbox.put_nowait
        )
        self._crew = crew = Crew(driver.inbox.put_nowait)
        self._watch_signals(driver)
        loop = asyncio.get_running_loop()
        self._housekeeper = housekeeper = Housekeeper(
            prepared.run_dir,
            self._weights_dir,
            _checkpoint_bytes(prepared),
            lambda found: loop.call_soon_threadsafe(driver.inbox.put_nowait, found),
        )
        housekeeper.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for job in self._jobs():
                    self._attend(await crew.start(job))
                fresh = tasks.create_task(prepared.view.keep_fresh(clock.now))
                at = control_address(prepared.run_id, os.getpid())
                control = tasks.create_task(self._channel.serve(at))
                finish = await driver.run(prepared.first)
                control.cancel()
                await crew.stop(prepared.config.run.exit_timeout_s)
                fresh.cancel()
        finally:
            crew.kill()
            housekeeper.stop()
        await asyncio.sleep(0)  # what the last measurement found is in the inbox then
        driver.take_stats()
        return finish, crew.death

    def _checkpointed(self, seq: int, event: CheckpointDone) -> None:
        """Save the scheduler's state, and let go what nobody needs; the journal is synced."""
        prepared, config = self._prepared, self._prepared.config
        try:
            snapshots.write(prepared.run_dir, prepared.scheduler, seq, config.checkpoint.keep)
        except OSError as error:  # it spares a replay and nothing else
            text = f"the scheduler's snapshot cannot be written: {error.strerror}; a resume takes longer"
            self._driver.inbox.put_nowait(Noticed("snapshot", text))
        needs = retention.needs_of(prepared.scheduler.state, writer_life=prepared.lineage)
        ages = dict(prepared.metrics.segment_ages.newest)
        self._housekeeper.tidy(Tidy(needs, config.retention, ages, event.num_bytes))

    def _best_checkpoint(self) -> tuple[int, ...]:
        """Return the step of the checkpoint with the best evaluation, when the settings keep it."""
        prepared = self._prepared
        if not prepared.config.checkpoint.keep_best:
            return ()
        return best_checkpoint(prepared.metrics, checkpoint_dir(prepared.run_dir))

    def _attend(self, worker: Worker) -> None:
        self._driver.connect(worker.job.role, worker.job.name, worker.link)
        self._tasks.create_task(self._crew.listen(worker))

    def _restart(self, command: RestartWorker) -> None:
        self._tasks.create_task(self._start_anew(command))

    async def _start_anew(self, command: RestartWorker) -> None:
        worker = await self._crew.restart(command.worker, command.epoch)
        if worker is not None:
            self._attend(worker)

    def _group_rewards(self) -> tuple[GroupReward, Path] | None:
        function = group_reward(self._prepared.config, self._prepared.run_dir)
        return None if function is None else (function, payload_dir(self._prepared.run_dir))

    def _watch_signals(self, driver: LiveDriver) -> None:
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()

        def asked(name: str) -> None:
            self._stops_asked += 1
            if self._stops_asked > 1 and main is not None:
                main.cancel()
                return
            ending = self._prepared.scheduler.state.phase == "stopping"
            doing = "ending" if self._prepared.config.eval.only else "finishing the step, then saving"
            what = "the run is ending already" if ending else doing
            self._prepared.say(f"{name}: {what}; once more ends at once")
            driver.inbox.put_nowait(StopAsked(name))

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, asked, number.name)

    def _jobs(self) -> Iterator[Job]:
        names = [f"generator{index}" for index in range(self._prepared.config.generator.replicas)]
        generators = tuple((name, address(self._prepared.run_id, name)) for name in names)
        for name, at in generators:
            yield replace(self._job("generator", name, self._threads.generator.alone), address=at)
        if not self._prepared.config.eval.only:
            yield self._job("trainer", "trainer", self._threads.trainer.alone)
        for index in range(self._prepared.config.environment.workers):
            yield replace(self._job("environment", f"environment{index}", 1), generators=generators)

    def _job(self, role: Role, name: str, threads: int) -> Job:
        prepared = self._prepared
        return Job(
            role=role,
            name=name,
            config=prepared.config,
            run_id=prepared.run_id,
            run_dir=prepared.run_dir.absolute(),
            model_dir=prepared.model_dir,
            weights_dir=self._weights_dir,
            lineage=prepared.lineage,
            checkpoint=prepared.checkpoint,
            threads=threads,
            import_path=tuple(sys.path),
        )


def divide_cores(config: Config) -> Threads:
    """Divide the cores: half each while both sides compute, all for one while the other waits.

    Replicas share the generators' part; each has one thread at least.
    """
    cores = len(os.sched_getaffinity(0))
    half = max(1, cores // 2)
    fixed = config.generator.threads, config.trainer.threads
    return Threads(
        Share(
            fixed[0] or max(1, (cores - half) // config.generator.replicas),
            fixed[0] or max(1, cores // config.generator.replicas),
        ),
        Share(fixed[1] or half, fixed[1] or cores),
    )
