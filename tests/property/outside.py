"""Everything outside the scheduler, for tests that answer its commands in any order with any legal answer.

It keeps what is outstanding. Each thing offers its legal answers, the usual one first; to give one changes
the thing and returns the event. There is no time and no chance in here: whoever drives it chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
from headway.core.events import (
    CheckpointDone,
    Event,
    GroupSignal,
    PartEnded,
    ReplicaChanged,
    ReplicaJoined,
    ReplicaLost,
    RolledBack,
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    RolloutResumed,
    SandboxLost,
    SandboxReady,
    SandboxRefused,
    SandboxReleased,
    SandboxWanted,
    Scored,
    ScoreFailed,
    StepEnded,
    TaskOffered,
    TasksExhausted,
    ToolEnded,
    TurnEnded,
    VerdictGiven,
    VersionApplied,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from headway.core.records import VersionSpan, merge_spans

Answer = Callable[[], Event]
Key = tuple[object, ...]
NUM_TURNS = 2
VERDICTS = (("length", 1e6), ("repetition", 1.0), ("environment", -1.0), ("value", 0.0), ("user", -1.0))


@dataclass
class Replica:
    name: str
    epoch: int
    version: tuple[int, int]  # lineage, number
    dead: bool = False


@dataclass
class Attempt:
    """One attempt on its way, as an environment worker knows it."""

    rollout: str
    attempt: int
    replica: str
    epoch: int
    begun: tuple[int, int]  # version at the start of the answer in progress
    turn: int = 0
    calls: int = 0
    spans: list[VersionSpan] = field(default_factory=list)
    unfinished: int = 0  # tokens at the spans' end that the answer in progress will tell again
    sandbox: str = ""
    ready: bool = False  # the sandbox runs
    parked: bool = False
    asked: str = ""  # cancel, park or resume
    resume_on: str = ""


@dataclass
class Outside:
    """The drivers and workers of one life after another."""

    uses_sandbox: bool = True
    num_train_tasks: int = 0  # 0 for no end
    solved_every: int = 2  # every so-manieth rollout is solved
    lineage: int = 0
    open: dict[Key, Command | Attempt | Event] = field(
        default_factory=dict
    )  # what is outstanding, oldest first
    replicas: dict[str, Replica] = field(default_factory=dict)
    trainer_alive: bool = False
    partials: dict[str, Attempt] = field(default_factory=dict)
    spans: dict[str, tuple[VersionSpan, ...]] = field(default_factory=dict)  # by payload
    released: set[str] = field(default_factory=set)  # sandboxes that were asked to end
    finish: Finish | None = None
    wake_at_s: float | None = None
    num: int = 0  # of things made, for their names and numbers

    # --- lives

    def begin(self, lineage: int, *, num_workers: int, num_replicas: int) -> None:
        """A new life: nothing of the one before is left."""
        self.lineage, self.finish, self.wake_at_s = lineage, None, None
        self.open, self.replicas, self.trainer_alive = {}, {}, False
        self.open["join", "trainer"] = WorkerJoined("trainer", "trainer")
        for index in range(num_workers):
            self.open["join", f"e{index}"] = WorkerJoined("environment", f"e{index}")
        for index in range(num_replicas):
            self.open["join", f"g{index}"] = ReplicaJoined(f"g{index}", 0, lineage, 0, 8)

    def obey(self, command: Command) -> None:
        """Take in what the scheduler asks."""
        match command:
            case StartRollout():
                self._start(command)
            case Park() | Resume() | Cancel():
                self._ask(command)
            case WakeAt():
                self.wake_at_s = command.at_s
            case Finish():
                self.finish = command
            case RequestTask():
                self.open["task", command.request] = command
            case GrantSandbox():
                self.open["grant", command.sandbox] = command
            case ReleaseSandbox():
                self.released.add(command.sandbox)
                self.open.pop(("live", command.sandbox), None)
                self.open["release", command.sandbox] = command
            case Score():
                self.open["score", command.rollout, command.attempt, command.tries] = command
            case Signal():
                self.open["signal", command.group] = command
            case Train() | TrainPart() | Publish() | Checkpoint() | Rollback():
                self.open[(type(command).__name__,)] = command
            case ApplyVersion():
                for name in command.replicas:
                    self.open["apply", name, self.replicas[name].epoch] = command
            case RestartWorker(role="trainer"):
                self.open["join", "trainer"] = WorkerJoined("trainer", "trainer")
            case RestartWorker():
                self.open["join", command.worker] = ReplicaJoined(
                    command.worker, command.epoch, self.lineage, 0, 8
                )

    def _start(self, command: StartRollout) -> None:
        replica = self.replicas[command.replica]
        assert not replica.dead, f"{command.rollout} was started on a dead replica"
        made = Attempt(command.rollout, command.attempt, command.replica, replica.epoch, replica.version)
        if command.partial:
            before = self.partials[command.partial]
            made.turn, made.calls = before.turn, before.calls
            made.spans, made.unfinished = list(before.spans), before.unfinished
        self.open["rollout", command.rollout, command.attempt] = made

    def _ask(self, command: Park | Resume | Cancel) -> None:
        attempt = self.open.get(("rollout", command.rollout, command.attempt))
        if isinstance(attempt, Attempt) and attempt.asked != "cancel":
            attempt.asked = type(command).__name__.lower()
            if isinstance(command, Resume):
                attempt.resume_on = command.replica

    # --- answers

    def answers(self, key: Key) -> list[tuple[str, Answer]]:
        """Return the legal answers of what is outstanding under `key`, by name, the usual one first."""
        thing = self.open[key]
        if isinstance(thing, Attempt):
            return self._attempt(key, thing)
        found: list[tuple[str, Callable[[], Event]]] = []
        match thing:
            case WorkerJoined() | ReplicaJoined():
                found = [("join", lambda: self._join(thing))]
            case RequestTask():
                offered = self._task(thing)
                found = [("offer", lambda: offered), ("exhausted", lambda: TasksExhausted(thing.request))]
            case GrantSandbox():
                found = [
                    ("ready", lambda: self._ready(thing)),
                    ("lost", lambda: self._lost(thing.rollout, thing.attempt, thing.sandbox)),
                    ("refused", lambda: SandboxRefused(thing.rollout, thing.attempt, thing.sandbox, "x")),
                ]
            case SandboxReady():  # it runs
                return [("lost", lambda: self._lost(thing.rollout, thing.attempt, thing.sandbox, key))]
            case ReleaseSandbox():
                gone = (thing.rollout, thing.attempt, thing.sandbox)
                found = [
                    ("released", lambda: SandboxReleased(*gone)),
                    ("lost", lambda: SandboxLost(*gone, "x")),
                ]
            case Score():
                found = self._score(thing)
            case Signal():
                found = [
                    ("signal", lambda: self._signal(thing)),
                    ("drop", lambda: self._signal(thing, keep=False)),
                    ("judge failed", lambda: GroupSignal(thing.group, (), False, "drawn", failed="judge")),
                    ("judge away", lambda: GroupSignal(thing.group, (), False, "drawn", failed="judge_away")),
                ]
            case TrainPart():
                found = [("part", lambda: PartEnded(thing.batch, thing.part, 0.5, 1))]
            case Train() if ("TrainPart",) in self.open:
                return []  # the trainer does one thing after the other
            case Train():
                found = [
                    ("step", lambda: self._step(thing, 0.5)),
                    ("wild step", lambda: self._step(thing, 9.0)),
                ]
            case Publish():
                found = [
                    (
                        "published",
                        lambda: VersionPublished(thing.lineage, thing.number, 0.1, f"v{thing.number}", 1),
                    )
                ]
            case Checkpoint():
                found = [("saved", lambda: CheckpointDone(thing.step, f"step-{thing.step}", 0.1))]
            case Rollback():
                found = [("rolled back", lambda: RolledBack(thing.lineage, thing.step))]
            case ApplyVersion():
                found = [("applied", lambda: self._applied(str(key[1]), thing))]
            case _:
                raise TypeError(f"nothing answers {thing}")
        return [(name, self._closing(key, answer)) for name, answer in found]

    def usual(self) -> Answer | None:
        """Return the usual answer of what has been outstanding longest; None when nothing usual is left."""
        for key, thing in self.open.items():
            if isinstance(thing, SandboxReady):
                continue  # it runs, and that is all
            answers = self.answers(key)
            if answers and answers[0][0] not in ("fail environment", "verify"):
                return answers[0][1]
        return None

    def _closing(self, key: Key, answer: Answer) -> Answer:
        def close() -> Event:
            self.open.pop(key, None)
            return answer()

        return close

    def _join(self, event: WorkerJoined | ReplicaJoined) -> Event:
        if isinstance(event, ReplicaJoined):
            version = (event.lineage, event.number)
            self.replicas[event.replica] = Replica(event.replica, event.epoch, version)
        elif event.role == "trainer":
            self.trainer_alive = True
        return event

    def _task(self, command: RequestTask) -> Event:
        if command.split == "train" and 0 < self.num_train_tasks <= command.index:
            return TasksExhausted(command.request)
        name = f"{command.source}:{command.split}/{command.index}/{command.level}"
        return TaskOffered(command.request, name, command.level or 0, self.num_train_tasks)

    def _signal(self, command: Signal, *, keep: bool = True) -> Event:
        mean = sum(reward for _, reward in command.rewards) / len(command.rewards)
        advantages = tuple((name, reward - mean) for name, reward in command.rewards)
        return GroupSignal(command.group, advantages, keep, "" if keep else "drawn")

    def _step(self, command: Train, grad_norm: float) -> Event:
        metrics = {"grad_norm": grad_norm, "entropy": 1.0}
        return StepEnded(command.batch, command.step, 1.0, 1, 1, metrics)

    def _applied(self, name: str, command: ApplyVersion) -> Event:
        replica = self.replicas[name]
        replica.version = (command.lineage, command.number)
        return VersionApplied(name, replica.epoch, command.lineage, command.number, 0.1)

    # --- sandboxes and scores

    def _ready(self, command: GrantSandbox) -> Event:
        event = SandboxReady(command.rollout, command.attempt, command.sandbox, 0.1)
        if command.sandbox not in self.released:  # else it ends as soon as it runs
            self.open["live", command.sandbox] = event
        attempt = self.open.get(("rollout", command.rollout, command.attempt))
        if isinstance(attempt, Attempt):
            attempt.ready = True
        return event

    def _lost(self, rollout: str, attempt: int, sandbox: str, key: Key | None = None) -> Event:
        self.open.pop(key or (), None)
        return SandboxLost(rollout, attempt, sandbox, "infra")

    def _score(self, command: Score) -> list[tuple[str, Answer]]:
        self.num += 1
        solved = float(sum(map(ord, command.rollout)) % self.solved_every == 0)
        base = (command.rollout, command.attempt, command.tries)
        return [
            ("scored", lambda: Scored(*base, solved, (), 0.1, 0.0)),
            ("other score", lambda: Scored(*base, 1.0 - solved, (), 0.1, 0.0)),
            ("score failed", lambda: ScoreFailed(*base, "exception", "drawn")),
            ("judged", lambda: Scored(*base, solved, (), 0.1, 0.0, judged=True)),
            ("judge away", lambda: ScoreFailed(*base, "judge_away", "drawn")),
        ]

    def wish_to_verify(self, command: Score) -> Event:
        """A verifier asks for a sandbox before it answers."""
        name = f"v-{command.rollout}-{command.attempt}-{command.tries}"
        return SandboxWanted(command.rollout, command.attempt, name, "verify")

    # --- rollouts

    def _attempt(self, key: Key, it: Attempt) -> list[tuple[str, Answer]]:
        replica = self.replicas[it.replica]
        cut_off = replica.dead or replica.epoch != it.epoch
        base = (it.rollout, it.attempt)

        def over(owner: str, cause: str) -> tuple[str, Answer]:
            num_tokens = sum(span.num_tokens for span in it.spans)
            event = RolloutFailed(*base, owner, cause, "drawn", num_tokens)  # pyright: ignore
            return f"fail {owner}", self._closing(key, lambda: event)

        found: list[tuple[str, Answer]] = []
        if it.asked == "cancel":
            found.append(over("scheduler", "cancelled"))
        if it.parked:
            if it.asked == "resume":
                found.append(("resumed", lambda: self._resumed(it)))
        elif cut_off:
            found.append(("engine lost", lambda: self._park(it, "engine_lost", 1)))
        else:
            if it.asked == "park":
                found += [
                    ("parked", lambda: self._park(it, "asked", 0)),
                    ("parked within", lambda: self._park(it, "asked", 3)),
                ]
            found += self._doing(key, it)
        found += [over("environment", "exception"), over("infrastructure", "sandbox")]
        for source, value in VERDICTS:
            found.append((f"verdict {source}", lambda s=source, v=value: VerdictGiven(*base, s, v, "drawn")))  # pyright: ignore
        return found

    def _doing(self, key: Key, it: Attempt) -> list[tuple[str, Answer]]:
        """What an attempt that is not parked may tell next."""
        found: list[tuple[str, Answer]] = []
        if it.turn > it.calls and it.ready:
            found.append(("tool", lambda: self._tool(it)))
        if self.uses_sandbox and it.turn and not it.sandbox:
            found.append(("want", lambda: self._want(it)))
        waits = it.sandbox and not it.ready
        end = ("end", self._closing(key, lambda: self._end(it)))
        if it.turn < NUM_TURNS and not waits:
            found.append(("turn", lambda: self._turn(it, 5)))
            found.append(("long turn", lambda: self._turn(it, 60)))
        if it.turn >= NUM_TURNS and not waits:
            found.append(end)
        elif not it.unfinished:
            found += [end] if found else []  # early, as an environment may
        if not waits:
            found.append(("engine lost", lambda: self._park(it, "engine_lost", 2)))
        return found

    def _park(self, it: Attempt, cause: str, num_more: int) -> Event:
        version = self.replicas[it.replica].version
        if num_more:
            it.spans = merge_spans([*it.spans, VersionSpan(*it.begun, num_more)])
            it.unfinished += num_more
        it.parked, it.asked, it.begun = True, "" if it.asked == "park" else it.asked, version
        self.num += 1
        payload = f"partial:{self.num}" if self.num % 3 else ""
        kept = Attempt(it.rollout, it.attempt, it.replica, it.epoch, it.begun, it.turn, it.calls)
        kept.spans, kept.unfinished = list(it.spans), it.unfinished
        self.partials[payload] = kept
        told = tuple(it.spans)
        return RolloutParked(it.rollout, it.attempt, told, payload, cause, it.unfinished)  # pyright: ignore

    def _resumed(self, it: Attempt) -> Event:
        replica = self.replicas[it.resume_on]
        it.replica, it.epoch, it.begun = it.resume_on, replica.epoch, replica.version
        it.parked, it.asked = False, ""
        return RolloutResumed(it.rollout, it.attempt, it.replica, 10)

    def _turn(self, it: Attempt, num_tokens: int) -> Event:
        now = self.replicas[it.replica].version
        before: list[VersionSpan] = []
        left = it.unfinished
        for span in reversed(it.spans):  # the answer's beginning, as parking told it
            if not left:
                break
            before.insert(0, span._replace(num_tokens=min(left, span.num_tokens)))
            left -= before[0].num_tokens
        new = [VersionSpan(*it.begun, 2), VersionSpan(*now, num_tokens)]
        answer = tuple(merge_spans([*before, *new]))
        it.spans, it.unfinished, it.begun = merge_spans([*it.spans, *new]), 0, now
        it.turn += 1
        return TurnEnded(
            it.rollout,
            it.attempt,
            it.turn - 1,
            it.replica,
            answer,
            10,
            10 + num_tokens,
            0.0,
            0.1,
            0.1,
            "stop",
        )

    def _tool(self, it: Attempt) -> Event:
        it.calls += 1
        return ToolEnded(it.rollout, it.attempt, it.turn - 1, it.calls - 1, 0.1, "exit")

    def _want(self, it: Attempt) -> Event:
        it.sandbox = f"s-{it.rollout}-{it.attempt}"
        return SandboxWanted(it.rollout, it.attempt, it.sandbox, "rollout")

    def _end(self, it: Attempt) -> Event:
        payload = f"p:{it.rollout}:{it.attempt}"
        self.spans[payload] = tuple(it.spans)
        num_tokens = sum(span.num_tokens for span in it.spans)
        return RolloutEnded(
            it.rollout, it.attempt, payload, tuple(it.spans), it.turn, it.calls, 10, num_tokens, False
        )

    # --- deaths

    def trainer_dies(self) -> Event:
        """What it was doing is gone."""
        self.trainer_alive = False
        for kind in ("Train", "TrainPart", "Publish", "Checkpoint", "Rollback"):
            self.open.pop((kind,), None)
        return WorkerLost("trainer", "trainer", "drawn")

    def replica_dies(self, name: str) -> Event:
        """Its requests are lost, and so is what it was taking up."""
        replica = self.replicas[name]
        replica.dead = True
        self.open.pop(("apply", name, replica.epoch), None)
        return ReplicaLost(name, replica.epoch, "drawn")

    def load(self, name: str, used: float) -> Event:
        """A replica tells its load."""
        return ReplicaChanged(name, self.replicas[name].epoch, 4, 2, used, 100.0)
