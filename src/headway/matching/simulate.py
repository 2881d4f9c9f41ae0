"""The simulated driver: the real scheduler on a virtual clock.

It consumes the scheduler's commands, lets models answer them (`contracts`), and feeds the answers back from a
heap of timed events. Nothing waits: when the heap is empty before Finish, the run hangs, and that is an
error which names the open waits. Same seed, same simulation, to the byte. Each attempt draws from a stream of
its own, so that simulations with the same seed and other settings compare like with like.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from headway.core.codec import dumps
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
from headway.core.errors import DeadlineError
from headway.core.events import (
    DeadlinePassed,
    Event,
    GroupSignal,
    ReplicaJoined,
    ReplicaLost,
    RolloutEnded,
    RolloutFailed,
    RunResumed,
    RunStarted,
    SandboxReady,
    SandboxReleased,
    Scored,
    ScoreFailed,
    ToolEnded,
    TurnEnded,
    VersionApplied,
    WorkerJoined,
    WorkerLost,
)
from headway.core.notes import Note, RolloutSettled
from headway.matching.control import Controller
from headway.matching.engine_replica import Replica
from headway.matching.plain_models import plain_models
from headway.matching.roles import SimModels, SimSettings, offer
from headway.matching.simulated_memory import SimMemory
from headway.matching.simulated_rollouts import SimRollouts
from headway.matching.simulated_trainer import SimTrainer
from headway.queue.scheduler import Scheduler

if TYPE_CHECKING:
    from headway.config.control import ControlSettings
    from headway.queue.settings import SchedulerSettings

Sink = Callable[[int, float, Event, "list[Command]", "list[Note]"], None]
"""Takes what one journal line holds: number, time, event, commands, notes."""

MAY_BE_LOST = (
    TurnEnded,
    ToolEnded,
    RolloutEnded,
    RolloutFailed,
    Scored,
    SandboxReady,
    SandboxReleased,
)
"""Events without which a run goes on: past its deadline the wait is over."""


@dataclass(frozen=True, slots=True)
class SimEntry:
    """What one journal line holds."""

    seq: int
    t: float
    event: Event
    commands: list[Command]
    notes: list[Note]

    def to_bytes(self) -> bytes:
        """Return a canonical form, for comparing two simulations."""
        kinds = [type(item).__name__ for item in (self.event, *self.commands, *self.notes)]
        return dumps([self.seq, self.t, kinds, self.event, self.commands, self.notes]).encode()


@dataclass(slots=True)
class SimRun:
    """What outlives a driver: the scheduler, the journal, and the checkpoints.

    With `keeps` false neither journal nor trained rollouts are kept, and memory does not grow with the run.
    """

    scheduler: Scheduler
    keeps: bool = True
    num_events: int = 0
    entries: list[SimEntry] = field(default_factory=list[SimEntry])
    checkpoints: list[int] = field(default_factory=list[int])
    trained: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # step -> rollouts, surviving
    controller: Controller | None = None

    def roll_back(self, step: int) -> None:
        """Forget what the weights of `step` do not contain."""
        self.trained = {done: rows for done, rows in self.trained.items() if done <= step}
        self.checkpoints = [done for done in self.checkpoints if done <= step]


class SimulatedDriver:
    """One life of a simulated run.

    Attributes:
        run: what outlives it.
        models: what the run is made of.
        sim: the settings that they were made from, or what goes wrong.
        sink: takes each journal line as it is made.
        now_s: the virtual time.
        finish: the scheduler's last command, None before.
    """

    def __init__(
        self,
        run: SimRun,
        sim: SimSettings | SimModels,
        seed: int,
        *,
        lineage: int = 0,
        start_s: float = 0.0,
        sink: Sink | None = None,
    ) -> None:
        self.run = run
        self.models = plain_models(sim) if isinstance(sim, SimSettings) else sim
        self.faults = self.models.faults
        self.sim: Any = self.faults
        self.fleet = self.models.fleet.begin()
        self.sink = sink
        self.rng = random.Random(seed)
        self.now_s = start_s
        self.lineage = lineage
        self.finish: Finish | None = None
        self._seed = seed
        self._stream = random.Random(0)
        self._messages_fail = self.faults.messages_fail
        self._heap: list[tuple[float, int, Callable[..., None], Any]] = []
        self._count = 0
        self.rollouts = SimRollouts(self)
        self.memory = SimMemory(self, self.rollouts)
        self.trainer = SimTrainer(self, run, self.rollouts)
        self._wake_at_s: float | None = None
        self._obeys = self._answers()

    # --- the loop

    def play(self, *, max_events: int = 200_000, stop_after: int | None = None) -> Finish | None:
        """Run to Finish; or for `stop_after` events, as if the process was killed there."""
        if self.lineage:
            step = self.run.checkpoints[-1] if self.run.checkpoints else 0
            self.run.roll_back(step)
            self.feed(RunResumed(self.lineage, step, self.now_s))
        else:
            self.feed(RunStarted())
        self._start_workers()
        heap, run = self._heap, self.run
        until = run.num_events + (max_events if stop_after is None else stop_after)
        while run.num_events < until:
            if self.finish is not None:
                return self.finish
            if not heap:
                raise DeadlineError(f"the simulation hangs; open waits: {self.run.scheduler.state.deadlines}")
            at, _, action, argument = heappop(heap)
            self.now_s = at
            if argument is None:
                action()
            else:
                action(argument)
        if self.finish is None and stop_after is None:
            raise DeadlineError(f"no Finish after {max_events} events")
        return self.finish

    @property
    def step(self) -> int:
        """Optimizer steps applied."""
        return self.run.scheduler.state.step

    def stream(self, seed: int, attempt: int) -> random.Random:
        """Return an attempt's own source of chance, good until the next one is asked for."""
        self._stream.seed(((self._seed << 32) | seed) * 1024 + attempt)
        return self._stream

    def tell(self, event: Event) -> None:
        """Let `event` happen now, unless something goes wrong with it; only from an action of the heap."""
        if self._messages_fail:
            self.later(0.0, event)
        else:
            self.feed(event)

    def later(self, delay_s: float, event: Event) -> None:
        """Let `event` happen `delay_s` seconds from now, perhaps much later, perhaps twice, perhaps never."""
        if self._messages_fail:
            faults = self.faults
            if isinstance(event, MAY_BE_LOST) and self.happens(faults.p_message_lost):
                return
            if self.happens(faults.p_message_late):
                delay_s += self.rng.random() * faults.late_s
            if self.happens(faults.p_repeated):
                self.at(delay_s + self.rng.random(), self.feed, event)
        self.at(delay_s, self.feed, event)

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens; one that never does costs no draw."""
        return bool(probability) and self.rng.random() < probability

    def at(self, delay_s: float, action: Callable[..., None], argument: Any = None) -> None:
        """Do something `delay_s` seconds from now: `action(argument)`, or `action()` without one."""
        self._count += 1
        heappush(self._heap, (self.now_s + delay_s, self._count, action, argument))

    def feed(self, event: Event) -> None:
        """Let an event happen now and carry out what follows from it."""
        if self.finish is not None:
            return
        run, now = self.run, self.now_s
        commands, notes = run.scheduler.handle(event, now)
        if run.keeps:
            run.entries.append(SimEntry(run.num_events, now, event, commands, notes))
        if self.sink is not None:
            self.sink(run.num_events, now, event, commands, notes)
        run.num_events += 1
        if notes:
            for note in notes:
                if type(note) is RolloutSettled:
                    self.rollouts.settled(note.rollout)
        if commands:
            for command in commands:
                self._obey(command)
        if run.controller is not None:
            entry = SimEntry(run.num_events - 1, now, event, commands, notes)
            for decision in run.controller.feed(entry):
                self.feed(decision)

    def _start_workers(self) -> None:
        settings, start_s = self.run.scheduler.settings, self.faults.start_s
        if not settings.eval.only:
            self.later(start_s, WorkerJoined("trainer", "trainer"))
        for index in range(settings.num_environment_workers):
            self.later(start_s, WorkerJoined("environment", f"e{index}"))
            self.at(start_s, self._let_worker_die, index)
        for index in range(settings.num_replicas):
            replica = self._new_replica(f"g{index}", 0)
            joined = ReplicaJoined(replica.name, 0, self.lineage, 0, self.models.engine.max_running)
            self.later(start_s, joined)
            self.at(start_s, self._let_die, replica)
        self.at(start_s, self.memory.watch)

    def _new_replica(self, name: str, epoch: int) -> Replica:
        version = (self.lineage, 0)
        replica = Replica(name, self.models.engine, self, self.rollouts.turn_ended, version, epoch)
        self.rollouts.replicas[name] = replica
        return replica

    # --- commands

    def _answers(self) -> dict[type, Callable[[Any], None]]:
        return {
            RequestTask: lambda command: self.later(0.0, offer(command, self.models.num_tasks)),
            StartRollout: self.rollouts.start,
            Park: self.rollouts.park,
            Resume: self.rollouts.resume,
            GrantSandbox: self.rollouts.grant,
            ReleaseSandbox: self.rollouts.release,
            Cancel: self.rollouts.cancel,
            Signal: self._signal,
            TrainPart: self.trainer.train_part,
            Train: self.trainer.train,
            Publish: self.trainer.publish,
            ApplyVersion: self._apply_version,
            Checkpoint: self.trainer.checkpoint,
            Rollback: self.trainer.roll_back,
            RestartWorker: self._restart,
            WakeAt: self._wake,
        }

    def _obey(self, command: Command) -> None:
        if isinstance(command, Score):
            self._score(command)
        elif isinstance(command, Finish):
            self.finish = command
        else:
            self._obeys[type(command)](command)

    def _signal(self, command: Signal) -> None:
        mean = sum(reward for _, reward in command.rewards) / len(command.rewards)
        signal = tuple((name, reward - mean) for name, reward in command.rewards)
        keep = not self.happens(self.faults.p_verdict_drops)
        self.later(0.0, GroupSignal(command.group, signal, keep, "" if keep else "simulated"))

    def _score(self, command: Score) -> None:
        faults = self.faults
        if self.happens(faults.p_score_hangs):
            return
        rollout, attempt, tries = command.rollout, command.attempt, command.tries
        known = self.rollouts.known.get(rollout)
        if known is not None and known.attempt == attempt:
            plan = known.plan
        else:  # it ended in an earlier life
            plan = self.rollouts.plan(command.task_id, rollout, attempt, 0, "train")
        if self.happens(faults.p_score_fails):
            event: Event = ScoreFailed(rollout, attempt, tries, "timeout", "simulated")
        else:
            reward = self.models.workload.reward(self.rng, plan)
            event = Scored(rollout, attempt, tries, reward, (), plan.score_s, 0.0)
        self.later(plan.score_s, event)

    def _wake(self, command: WakeAt) -> None:
        self._wake_at_s = command.at_s
        self.at(max(0.0, command.at_s - self.now_s), self._wakes, command.at_s)

    def _wakes(self, at_s: float) -> None:
        if self._wake_at_s == at_s:
            self.feed(DeadlinePassed())

    # --- versions

    def _apply_version(self, command: ApplyVersion) -> None:
        apply_s = self.models.trainer.apply_s
        for name in command.replicas:
            replica = self.rollouts.replicas[name]
            if self.happens(self.faults.p_weights_late):
                self.at((self.faults.stall_factor - 1.0) * apply_s, self._take_up, (replica, command))
            else:
                self._take_up((replica, command))

    def _take_up(self, what: tuple[Replica, ApplyVersion]) -> None:
        replica, _ = what
        if not replica.dead:
            replica.stand()
            self.at(self.models.trainer.apply_s, self._applied, what)

    def _applied(self, what: tuple[Replica, ApplyVersion]) -> None:
        replica, command = what
        if not replica.dead:
            rest_s = replica.take_up(command.lineage, command.number, recompute=command.kv == "recompute")
            pause_s = self.models.trainer.apply_s + rest_s
            self.feed(VersionApplied(replica.name, replica.epoch, command.lineage, command.number, pause_s))

    # --- workers

    def _restart(self, command: RestartWorker) -> None:
        start_s = self.faults.start_s
        if command.role == "trainer":
            self.trainer.end_life()
            self.later(start_s, WorkerJoined("trainer", command.worker))
            return
        if command.role == "environment":
            self.later(start_s, WorkerJoined("environment", command.worker))
            self.at(start_s, self._let_worker_die, int(command.worker[1:]))
            return

        def join() -> None:
            replica = self._new_replica(command.worker, command.epoch)
            slots = self.models.engine.max_running
            self.feed(ReplicaJoined(command.worker, command.epoch, self.lineage, 0, slots))
            self.at(start_s, self._let_die, replica)

        self.at(start_s, join)

    def _let_worker_die(self, index: int) -> None:
        if self.faults.environment_dies_every_s:
            after_s = self.rng.expovariate(1.0 / self.faults.environment_dies_every_s)
            self.at(after_s, lambda: self._worker_dies(index))

    def _worker_dies(self, index: int) -> None:
        """Tell the death, then what it means for its rollouts, as the live driver does."""
        self.feed(WorkerLost("environment", f"e{index}", "simulated"))
        self.rollouts.worker_died(index, self.run.scheduler.settings.num_environment_workers)

    def _let_die(self, replica: Replica) -> None:
        if self.faults.generator_dies_every_s:
            after_s = self.rng.expovariate(1.0 / self.faults.generator_dies_every_s)
            self.at(after_s, lambda: self._die(replica))

    def _die(self, replica: Replica) -> None:
        if not replica.dead:
            replica.dead = True
            self.later(0.0, ReplicaLost(replica.name, replica.epoch, "simulated"))
            self.rollouts.replica_died(replica)


def simulate(
    settings: SchedulerSettings, sim: SimSettings, seed: int, control: ControlSettings | None = None
) -> SimRun:
    """Run a whole simulated run, with the controller where it is given, and return its journal."""
    run = SimRun(Scheduler(settings))
    run.controller = None if control is None else Controller(control, settings)
    SimulatedDriver(run, sim, seed).play()
    return run
