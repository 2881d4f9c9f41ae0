"""The simulated driver: the real scheduler on a virtual clock.

It consumes the scheduler's commands, models what answers them (`roles`), and feeds the answers back from a
heap of timed events. Nothing waits: when the heap is empty before Finish, the run hangs, and that is an
error which names the open waits. Same seed, same simulation, to the byte.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.clock import VirtualClock
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
    CheckpointDone,
    DeadlinePassed,
    Event,
    GroupSignal,
    PartEnded,
    ReplicaJoined,
    ReplicaLost,
    RolledBack,
    RolloutEnded,
    RolloutFailed,
    RunResumed,
    RunStarted,
    SandboxReady,
    SandboxReleased,
    Scored,
    ScoreFailed,
    StepEnded,
    ToolEnded,
    TurnEnded,
    VersionApplied,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from headway.core.notes import Note
from headway.matching.control import Controller
from headway.matching.roles import SimReplica, SimSettings, offer, task_solve_rate
from headway.matching.simulated_memory import SimMemory
from headway.matching.simulated_rollouts import SimRollouts
from headway.queue.scheduler import Scheduler

if TYPE_CHECKING:
    from headway.config.control import ControlSettings
    from headway.queue.settings import SchedulerSettings


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
    """What outlives a driver: the scheduler, the journal, and the checkpoints."""

    scheduler: Scheduler
    entries: list[SimEntry] = field(default_factory=list[SimEntry])
    checkpoints: list[int] = field(default_factory=list[int])
    trained: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # step -> rollouts, surviving
    controller: Controller | None = None

    def roll_back(self, step: int) -> None:
        """Forget what the weights of `step` do not contain."""
        self.trained = {done: rows for done, rows in self.trained.items() if done <= step}
        self.checkpoints = [done for done in self.checkpoints if done <= step]


class SimulatedDriver:
    """One life of a simulated run."""

    def __init__(
        self, run: SimRun, sim: SimSettings, seed: int, *, lineage: int = 0, start_s: float = 0.0
    ) -> None:
        self.run = run
        self.sim = sim
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.clock.advance_to(start_s)
        self.lineage = lineage
        self.finish: Finish | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.rollouts = SimRollouts(self)
        self.memory = SimMemory(self, self.rollouts)
        self._trainer_life = 0
        self._trainer_free_s = 0.0  # when it is done with the parts that it has
        self._gathered_s = 0.0  # computing of the parts of the step that it has begun
        self._wake_at_s: float | None = None

    # --- the loop

    def play(self, *, max_events: int = 200_000, stop_after: int | None = None) -> Finish | None:
        """Run to Finish; or to `stop_after` events, as if the process was killed there."""
        if self.lineage:
            step = self.run.checkpoints[-1] if self.run.checkpoints else 0
            self.run.roll_back(step)
            self.feed(RunResumed(self.lineage, step, self.clock.now()))
        else:
            self.feed(RunStarted())
        self._start_workers()
        for count in range(max_events):
            if self.finish is not None or count == stop_after:
                return self.finish
            if not self._heap:
                raise DeadlineError(f"the simulation hangs; open waits: {self.run.scheduler.state.deadlines}")
            at, _, action = heapq.heappop(self._heap)
            self.clock.advance_to(at)
            action()
        raise DeadlineError(f"no Finish after {max_events} events")

    def later(self, delay_s: float, event: Event) -> None:
        """Let `event` happen `delay_s` seconds from now, perhaps much later, perhaps twice, perhaps never."""
        if isinstance(event, MAY_BE_LOST) and self.happens(self.sim.p_message_lost):
            return
        if self.happens(self.sim.p_message_late):
            delay_s += self.rng.random() * self.sim.late_s
        self.at(delay_s, lambda: self.feed(event))
        if self.happens(self.sim.p_repeated):
            self.at(delay_s + self.rng.random(), lambda: self.feed(event))

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens; one that never does costs no draw."""
        return bool(probability) and self.rng.random() < probability

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something `delay_s` seconds from now."""
        self._count += 1
        heapq.heappush(self._heap, (self.clock.now() + delay_s, self._count, action))

    def feed(self, event: Event) -> None:
        """Let an event happen now and carry out what follows from it."""
        if self.finish is not None:
            return
        now = self.clock.now()
        commands, notes = self.run.scheduler.handle(event, now)
        entry = SimEntry(len(self.run.entries), now, event, commands, notes)
        self.run.entries.append(entry)
        for command in commands:
            self._obey(command)
        if self.run.controller is not None:
            for decision in self.run.controller.feed(entry):
                self.feed(decision)

    def _start_workers(self) -> None:
        settings = self.run.scheduler.settings
        if not settings.eval.only:
            self.later(self.sim.start_s, WorkerJoined("trainer", "trainer"))
        for index in range(settings.num_environment_workers):
            self.later(self.sim.start_s, WorkerJoined("environment", f"e{index}"))
            self.at(self.sim.start_s, lambda index=index: self._let_worker_die(index))
        for index in range(settings.num_replicas):
            name = f"g{index}"
            replica = SimReplica(name, self.sim.max_running, [(0.0, self.lineage, 0)])
            self.rollouts.replicas[name] = replica
            self.later(self.sim.start_s, ReplicaJoined(name, 0, self.lineage, 0, self.sim.max_running))
            self.at(self.sim.start_s, lambda replica=replica: self._let_die(replica))
        self.at(self.sim.start_s, self.memory.watch)

    # --- commands

    def _obey(self, command: Command) -> None:
        sim = self.sim
        match command:
            case RequestTask():
                self.later(0.0, offer(command, sim))
            case StartRollout():
                self.rollouts.start(command)
            case Park():
                self.rollouts.park(command)
            case Resume():
                self.rollouts.resume(command)
            case GrantSandbox():
                self.rollouts.grant(command)
            case ReleaseSandbox():
                self.later(0.0, SandboxReleased(command.rollout, command.attempt, command.sandbox))
            case Cancel():
                self.rollouts.cancel(command)
            case Score():
                self._score(command)
            case Signal():
                mean = sum(reward for _, reward in command.rewards) / len(command.rewards)
                signal = tuple((name, reward - mean) for name, reward in command.rewards)
                keep = not sim.p_verdict_drops or self.rng.random() >= sim.p_verdict_drops
                self.later(0.0, GroupSignal(command.group, signal, keep, "" if keep else "simulated"))
            case TrainPart():
                self._train_part(command)
            case Train():
                self._train(command)
            case Publish():
                event = VersionPublished(
                    command.lineage, command.number, sim.publish_s, f"v{command.number}", 1
                )
                self._trainer_later(sim.publish_s, event)
            case ApplyVersion():
                for name in command.replicas:
                    epoch = self.rollouts.replicas[name].epoch
                    slower = sim.stall_factor if self.happens(sim.p_weights_late) else 1.0
                    self.at(
                        slower * sim.apply_s, lambda name=name, epoch=epoch: self._apply(name, epoch, command)
                    )
            case Checkpoint():
                life = self._trainer_life
                self.at(sim.save_s, lambda: self._saved(command.step, life))
            case Rollback():
                self.run.roll_back(command.step)
                self._gathered_s = 0.0
                self._trainer_later(sim.save_s, RolledBack(command.lineage, command.step))
            case RestartWorker():
                self._restart(command)
            case WakeAt():
                self._wake(command.at_s)
            case Finish():
                self.finish = command
            case _:
                raise TypeError(f"the simulation cannot {type(command).__name__}")

    # --- the trainer

    def _train(self, command: Train) -> None:
        """Take a step: the part of `train_s` that the rows take which were not handed over before."""
        if self.rng.random() < self.sim.p_trainer_dies:
            self._trainer_dies()
            return
        life, gathered_s = self._trainer_life, self._gathered_s
        compute_s = self.sim.train_s * (1.0 - command.num_gathered / len(command.rows))
        self._gathered_s = 0.0

        def end() -> None:
            if life == self._trainer_life:
                self.run.trained[command.step] = [row.rollout for row in command.rows]
                took_s = gathered_s + compute_s
                self.feed(StepEnded(command.batch, command.step, took_s, 1, 1, gathered_s=gathered_s))

        slower = self.sim.stall_factor if self.happens(self.sim.p_trainer_stalls) else 1.0
        self.at(max(0.0, self._trainer_free_s - self.clock.now()) + slower * compute_s, end)

    def _train_part(self, command: TrainPart) -> None:
        """Compute a part of a step: its rows' part of `train_s`, which is a whole batch's."""
        if self.happens(self.sim.p_trainer_dies):
            self._trainer_dies()
            return
        batch_size = self.run.scheduler.settings.queue.batch_size
        compute_s = self.sim.train_s * len(command.rows) / max(batch_size, len(command.rows))
        self._gathered_s += compute_s
        self._trainer_free_s = self.clock.now() + compute_s
        self._trainer_later(compute_s, PartEnded(command.batch, command.part, compute_s, 1))

    def _trainer_dies(self) -> None:
        self._trainer_life += 1
        self._gathered_s = 0.0
        self.later(self.sim.train_s / 2, WorkerLost("trainer", "trainer", "simulated"))

    def _trainer_later(self, delay_s: float, event: Event) -> None:
        """An answer of the trainer that it gives only if it lives until then."""
        life = self._trainer_life
        self.at(delay_s, lambda: self.later(0.0, event) if life == self._trainer_life else None)

    def _saved(self, step: int, life: int) -> None:
        if life == self._trainer_life:
            self.run.checkpoints.append(step)
            self.feed(CheckpointDone(step, f"step-{step}", self.sim.save_s))

    # --- workers

    def _restart(self, command: RestartWorker) -> None:
        if command.role == "trainer":
            self._trainer_life += 1
            self.later(self.sim.start_s, WorkerJoined("trainer", command.worker))
            return
        if command.role == "environment":
            self.later(self.sim.start_s, WorkerJoined("environment", command.worker))
            self.at(self.sim.start_s, lambda: self._let_worker_die(int(command.worker[1:])))
            return

        def join() -> None:
            replica = SimReplica(
                command.worker, self.sim.max_running, [(self.clock.now(), self.lineage, 0)], command.epoch
            )
            self.rollouts.replicas[command.worker] = replica
            self.feed(ReplicaJoined(command.worker, command.epoch, self.lineage, 0, self.sim.max_running))
            self.at(self.sim.start_s, lambda replica=replica: self._let_die(replica))

        self.at(self.sim.start_s, join)

    def _let_worker_die(self, index: int) -> None:
        if self.sim.environment_dies_every_s:
            after_s = self.rng.expovariate(1.0 / self.sim.environment_dies_every_s)
            self.at(after_s, lambda: self._worker_dies(index))

    def _worker_dies(self, index: int) -> None:
        """Tell the death, then what it means for its rollouts, as the live driver does."""
        self.feed(WorkerLost("environment", f"e{index}", "simulated"))
        self.rollouts.worker_died(index, self.run.scheduler.settings.num_environment_workers)

    def _let_die(self, replica: SimReplica) -> None:
        if self.sim.generator_dies_every_s:
            after_s = self.rng.expovariate(1.0 / self.sim.generator_dies_every_s)
            self.at(after_s, lambda: self._die(replica))

    def _die(self, replica: SimReplica) -> None:
        if not replica.dead:
            replica.dead = True
            self.later(0.0, ReplicaLost(replica.name, replica.epoch, "simulated"))
            self.rollouts.replica_died(replica)

    def _apply(self, name: str, epoch: int, command: ApplyVersion) -> None:
        replica = self.rollouts.replicas[name]
        if replica.epoch == epoch and not replica.dead:
            replica.versions.append((self.clock.now(), command.lineage, command.number))
            self.feed(VersionApplied(name, epoch, command.lineage, command.number, self.sim.apply_s))

    def _wake(self, at_s: float) -> None:
        self._wake_at_s = at_s

        def wake() -> None:
            if self._wake_at_s == at_s:
                self.feed(DeadlinePassed())

        self.at(max(0.0, at_s - self.clock.now()), wake)

    # --- verifiers

    def _score(self, command: Score) -> None:
        if self.happens(self.sim.p_score_hangs):
            return
        if self.rng.random() < self.sim.p_score_fails:
            event: Event = ScoreFailed(
                command.rollout, command.attempt, command.tries, "timeout", "simulated"
            )
        else:
            step = self.run.scheduler.state.step
            solved = self.rng.random() < task_solve_rate(command.task_id, self.sim, step)
            event = Scored(
                command.rollout, command.attempt, command.tries, float(solved), (), self.sim.score_s, 0.0
            )
        self.later(self.sim.score_s, event)


def simulate(
    settings: SchedulerSettings, sim: SimSettings, seed: int, control: ControlSettings | None = None
) -> SimRun:
    """Run a whole simulated run, with the controller where it is given, and return its journal."""
    run = SimRun(Scheduler(settings))
    run.controller = None if control is None else Controller(control, settings)
    SimulatedDriver(run, sim, seed).play()
    return run
