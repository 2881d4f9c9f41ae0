"""The live driver: what really happens becomes events, commands become messages.

Consumes the inbox, which worker connections and signals fill; waits for the next event or for the time that
the scheduler asked to be woken at. Each event is journalled with its commands before the commands run.
It decides nothing: a command that it cannot carry out becomes CommandRefused. What the controller decides
after an entry is the next event.
When the disk is full, the room that the run set aside takes the end of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.clock import Clock, process_cpu_s, stopwatch
from headway.core.commands import (
    ApplyVersion,
    Cancel,
    Checkpoint,
    Command,
    Finish,
    GrantSandbox,
    Park,
    Publish,
    ReleaseSandbox,
    RequestTask,
    RestartWorker,
    Resume,
    Rollback,
    Score,
    Signal,
    StartRollout,
    Train,
    TrainPart,
    WakeAt,
)
from headway.core.errors import DiskFullError
from headway.core.events import (
    CheckpointDone,
    CommandRefused,
    DeadlinePassed,
    DiskFull,
    Event,
    GroupSignal,
    PartEnded,
    RolloutEnded,
    RolloutFailed,
    SettingChanged,
    StepEnded,
    WorkerJoined,
    WorkerLost,
)
from headway.core.notes import EvalEnded, RolloutSettled
from headway.runtime.environments import Environments
from headway.runtime.group_rewards import GroupRewardThread
from headway.runtime.signals import SignalThread
from headway.telemetry.progress import Progress
from headway.telemetry.records import Entry, Stat

if TYPE_CHECKING:
    from pathlib import Path

    from headway.matching.control import Controller
    from headway.queue.scheduler import Scheduler
    from headway.queue.verdict import Verdict
    from headway.rewards.group import GroupReward
    from headway.runtime.view import View
    from headway.runtime.wire import Link
    from headway.telemetry.journal_writer import JournalWriter
    from headway.telemetry.metrics import RunMetrics

Advantages = Callable[[Signal], GroupSignal]
Stats = dict[str, float]

_STAT_EVERY_S = 5.0
_SYNC_EVERY_S = 1.0
_TIME_DIGITS = 6  # times are rounded before the scheduler sees them, so that the journal holds them exactly


@dataclass(frozen=True, slots=True)
class Share:
    """CPU threads of one side."""

    together: int  # while both sides compute
    alone: int  # while the other one waits


@dataclass(frozen=True, slots=True)
class Threads:
    """How the machine's cores are divided between the two sides."""

    generator: Share
    trainer: Share


class LiveDriver:
    """Drives one life of a run from its first event to Finish."""

    def __init__(
        self,
        scheduler: Scheduler,
        journal: JournalWriter,
        clock: Clock,
        metrics: RunMetrics,
        *,
        next_seq: int,
        advantages: Advantages,
        verdict: Verdict | None = None,
        groups: tuple[GroupReward, Path] | None = None,
        controller: Controller,
        changed: Callable[[SettingChanged], None],
        threads: Threads,
        restart: Callable[[RestartWorker], None],
        checkpointed: Callable[[int, CheckpointDone], None],
        keep: Callable[[], tuple[int, ...]],
        give_up_reserve: Callable[[], bool],
        view: View,
    ) -> None:
        self.inbox: asyncio.Queue[Event | Stats] = asyncio.Queue()
        self.finish: Finish | None = None
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._progress = Progress(metrics, view.width)
        self._seq = next_seq
        self._signals = SignalThread(advantages, self._from_thread, verdict)
        self._asked = self._signals.ask  # what takes a Signal first
        if groups is not None:
            self._asked = GroupRewardThread(*groups, self._from_thread, self._signals.ask).ask
        self._controller = controller
        self._changed = changed
        self._threads = threads
        self._restart = restart
        self._checkpointed = checkpointed
        self._keep = keep
        self._kept: tuple[int, ...] = ()  # what the trainer was told last
        self._give_up_reserve = give_up_reserve
        self._view = view
        self._links: dict[str, Link] = {}
        self._environments = Environments()
        self._unusable: set[str] = set()  # generators that came back and may not answer yet
        self._generating: set[str] = set()  # rollouts that may ask for tokens
        self._training = 0  # steps and parts that the trainer has to compute
        self._given: tuple[int, int] = (0, 0)  # threads that generators and trainer were given last
        self._wake_at_s: float | None = None
        self._scheduler_s = 0.0
        self._stat_at_s = 0.0
        self._sync_at_s = 0.0

    def connect(self, role: str, name: str, link: Link) -> None:
        """Make a worker reachable; one of a known name takes the place of one that died."""
        if role == "generator" and name in self._links:
            self._unusable.add(name)
        if role == "environment":
            self._environments.connect(name, link)
            return
        self._links[name] = link
        self._given = (0, 0)  # it knows of no threads yet
        if role == "trainer":
            self._kept = ()

    async def run(self, first: Sequence[Event]) -> Finish:
        """Handle events until Finish; `first` come before any other."""
        for event in first:
            self._handle(event)
        while self.finish is None:
            what = await self._next()
            if isinstance(what, dict):
                self._write_stat(what)
            else:
                self._handle(what)
        self._tick(force=True)
        return self.finish

    def take_stats(self) -> None:
        """Write down the measurements that are still in the inbox; events come too late."""
        while not self.inbox.empty():
            what = self.inbox.get_nowait()
            if isinstance(what, dict):
                self._write_stat(what)

    async def _next(self) -> Event | Stats:
        """Return the next event, or DeadlinePassed at the time that the scheduler asked for."""
        if self._wake_at_s is None:
            return await self.inbox.get()
        wait_s = self._wake_at_s - self._clock.now()
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    return await self.inbox.get()
            except TimeoutError:
                pass
        self._wake_at_s = None
        return DeadlinePassed()

    def _handle(self, event: Event) -> None:
        self._environments.heard(event)
        began = stopwatch()
        now = round(self._clock.now(), _TIME_DIGITS)
        commands, notes = self._scheduler.handle(event, now)
        self._scheduler_s += stopwatch() - began
        if self._scheduler.state.outcome == "disk_full":
            self._give_up_reserve()
        self._write(lambda: self._journal.write_event(self._seq, now, event, commands, notes))
        entry = Entry(self._seq, now, event, tuple(commands), tuple(notes))
        self._seq += 1
        if isinstance(event, CheckpointDone):
            self._write(self._journal.sync)  # first: a snapshot must not know of more than the journal
            self._checkpointed(entry.seq, event)
        for command in commands:
            self._obey(command)
        self._open_replicas()
        self._share_cores(event)
        for note in notes:
            if isinstance(note, RolloutSettled):
                self._environments.settled(note.rollout)
                self._generating.discard(note.rollout)
        self._metrics.feed(entry)
        self._tell_kept(entry)
        self._view.feed(entry)
        for line in self._progress.after(entry):
            self._view.say(line)
        self._tick()
        if isinstance(event, SettingChanged):
            self._changed(event)
            self._environments.watch(self._scheduler.settings.pruning.max_tokens)
        for decision in self._controller.feed(entry):
            self._handle(decision)

    def _tick(self, *, force: bool = False) -> None:
        now = self._clock.now()
        if force or now >= self._sync_at_s:
            self._sync_at_s = now + _SYNC_EVERY_S
            self._write(self._journal.sync)
        if force or now >= self._stat_at_s:
            self._stat_at_s = now + _STAT_EVERY_S
            values = {
                "driver_cpu_s": process_cpu_s(),
                "scheduler_s": self._scheduler_s,
                "journal_s": self._journal.spent_s,
            }
            self._write_stat(values)

    def _write_stat(self, values: Stats) -> None:
        now = self._clock.now()
        self._write(lambda: self._journal.write_stat(now, values))
        self._metrics.feed(Stat(now, values))
        self._view.feed(Stat(now, values))

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the journal; when the disk is full, with the room that was set aside, and end the run."""
        try:
            write()
        except DiskFullError as error:
            if not self._give_up_reserve():
                raise
            write()
            self.inbox.put_nowait(DiskFull("driver", str(error)))

    def _tell_kept(self, entry: Entry) -> None:
        """Tell the trainer which checkpoints stay because of their evaluations."""
        changes = any(isinstance(note, EvalEnded) for note in entry.notes)
        if not changes and not isinstance(entry.event, (CheckpointDone, WorkerJoined)):
            return
        kept = self._keep()
        if kept != self._kept and "trainer" in self._links:
            self._kept = kept
            self._links["trainer"].send("keep", kept)

    def _from_thread(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self.inbox.put_nowait, event)

    def _obey(self, command: Command) -> None:
        match command:
            case WakeAt():
                self._wake_at_s = command.at_s
            case Finish():
                self.finish = command
            case StartRollout():
                self._generating.add(command.rollout)
                self._environments.send(command)
            case RequestTask() | Cancel() | Park() | Resume() | GrantSandbox() | ReleaseSandbox() | Score():
                self._environments.send(command)
            case Signal():
                self._asked(command)
            case Train() | TrainPart():
                self._training += 1
                self._send("trainer", command)
            case Publish() | Checkpoint() | Rollback():
                self._send("trainer", command)
            case RestartWorker():
                if command.role == "environment":
                    sandboxes = self._scheduler.state.sandboxes
                    for event in self._environments.lost(command.worker, sandboxes):
                        self.inbox.put_nowait(event)
                self._restart(command)
            case ApplyVersion():
                for name in command.replicas:
                    self._send(name, command)
            case _:
                kind = type(command).__name__
                self.inbox.put_nowait(CommandRefused(kind, "", "this driver does not know the command"))

    def _send(self, name: str, command: Command) -> None:
        self._links[name].send("command", command)

    def _open_replicas(self) -> None:
        """Let a generator that came back answer once it holds the weights that the scheduler wants."""
        for name in list(self._unusable):
            replica = self._scheduler.state.replicas.get(name)
            if replica is not None and replica.usable and not replica.down:
                self._unusable.discard(name)
                self._links[name].send("usable")

    def _share_cores(self, event: Event) -> None:
        """Give one side all cores while the other one has nothing to compute."""
        match event:
            case RolloutEnded() | RolloutFailed():
                self._generating.discard(event.rollout)
            case PartEnded() | StepEnded():
                self._training = max(0, self._training - 1)
            case WorkerLost(role="trainer"):
                self._training = 0
            case _:
                pass
        generator, trainer = self._threads.generator, self._threads.trainer
        wanted = (
            generator.together if self._training else generator.alone,
            trainer.together if self._generating else trainer.alone,
        )
        if wanted == self._given or not self._scheduler.state.replicas:
            return
        self._given = wanted
        for name in self._scheduler.state.replicas:
            self._links[name].send("threads", wanted[0])
        if "trainer" in self._links:  # a run that only evaluates has none
            self._links["trainer"].send("threads", wanted[1])
