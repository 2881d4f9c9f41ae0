"""What is true of a run, kept beside the scheduler from what was told and asked; and the invariants.

Ages are counted from the steps that weights contain, not by the scheduler's own formula.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.commands import Command, Rollback, Row, Score, Signal, StartRollout, Train, TrainPart
from headway.core.events import Event, GroupSignal, RunResumed, Scored, StepEnded
from headway.core.notes import GroupSettled, Note, PartsDiscarded, RolloutRevived, RolloutSettled
from headway.queue.index import Index
from headway.queue.scheduler import Scheduler
from tests.property.outside import Outside
from tests.property.test_scheduler_properties import looked_up

Rewards = tuple[tuple[str, float], ...]


@dataclass
class Truth:
    """Facts by which the scheduler is judged."""

    started: set[str] = field(default_factory=set)
    settled: dict[str, str] = field(default_factory=dict)  # rollout -> fate
    weights: tuple[int, ...] = ()  # the steps that the newest weights contain, by a number of their own
    versions: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # what each contains
    rows: dict[int, tuple[str, ...]] = field(default_factory=dict)  # rollouts of each such step
    training: Train | None = None
    gathered: tuple[Row, ...] = ()  # what the trainer has of a batch that is not complete
    scores: dict[tuple[str, int, int], float] = field(default_factory=dict)  # by rollout, attempt, try
    asked: dict[str, tuple[int, int]] = field(default_factory=dict)  # attempt and try of the newest Score
    signals: dict[str, Rewards] = field(default_factory=dict)  # group -> what its Signal held
    frozen: dict[str, dict[str, float]] = field(default_factory=dict)  # group -> advantages
    lineage: int = 0
    num_steps: int = 0

    # --- what happens

    def take(
        self, event: Event, commands: list[Command], notes: list[Note], bound: int, outside: Outside
    ) -> None:
        """Follow one event and what came of it, and judge it."""
        match event:
            case Scored():
                self.scores[event.rollout, event.attempt, event.tries] = event.reward
            case GroupSignal() if any(
                isinstance(note, GroupSettled) and note.group == event.group for note in notes
            ):
                self.frozen[event.group] = dict(event.advantages)
            case StepEnded() if self.training is not None and event.batch == self.training.batch:
                self._step(self.training)
            case RunResumed():
                self._back_to(event.step, event.lineage)
            case _:
                pass
        for note in notes:
            if isinstance(note, RolloutSettled):
                self.invariant_1_each_rollout_ends_once(note)
            elif isinstance(note, PartsDiscarded):
                assert note.num_rollouts == len(self.gathered)
                self.gathered = ()
            elif isinstance(note, RolloutRevived):
                assert self.settled.pop(note.rollout, None) is not None, f"{note.rollout} was not settled"
        for command in commands:
            match command:
                case StartRollout():
                    self.started.add(command.rollout)
                case Score():
                    self.asked[command.rollout] = (command.attempt, command.tries)
                case Signal():
                    self.signals[command.group] = command.rewards
                    self.invariant_5_a_failure_is_never_a_reward(command)
                case Rollback():
                    assert not self.gathered, "a trainer that is taken back keeps what it gathered"
                    self._back_to(command.step, command.lineage)
                case TrainPart():
                    assert self.training is None, "a part beside a step"
                    assert command.step == len(self.weights) + 1
                    self.gathered += command.rows
                    self.invariant_2_no_token_beyond_the_bound_is_trained(command.rows, bound, outside)
                    self.advantages_froze_when_the_group_settled(command.rows)
                case Train():
                    assert command.rows[: command.num_gathered] == self.gathered
                    self.training, self.gathered = command, ()
                    rest = command.rows[command.num_gathered :]
                    self.invariant_2_no_token_beyond_the_bound_is_trained(rest, bound, outside)
                    self.advantages_froze_when_the_group_settled(command.rows)
                case _:
                    pass

    def _step(self, command: Train) -> None:
        self.training = None
        self.num_steps += 1
        self.weights = (*self.weights, self.num_steps)
        assert len(self.weights) == command.step
        self.versions[self.lineage, command.step] = self.weights
        self.rows[self.num_steps] = tuple(row.rollout for row in command.rows)
        survivors = [rollout for step in self.weights for rollout in self.rows[step]]
        assert len(survivors) == len(set(survivors)), "invariant 7: a rollout is in two surviving steps"

    def _back_to(self, step: int, lineage: int) -> None:
        self.training = None
        self.weights, self.lineage = self.weights[:step], lineage
        self.versions[lineage, step] = self.weights
        self.versions[lineage, 0] = ()

    def age(self, version: tuple[int, int]) -> int:
        """Return the steps that only one of the version and the newest weights contains."""
        return len(set(self.versions.get(version, ())) ^ set(self.weights))

    # --- invariants, by their numbers in DESIGN section 5

    def invariant_1_each_rollout_ends_once(self, note: RolloutSettled) -> None:
        """A settled rollout is settled again only after it was revived."""
        assert note.rollout not in self.settled, (
            f"{note.rollout} settled twice: {self.settled[note.rollout]}, {note.fate}"
        )
        self.settled[note.rollout] = note.fate

    def invariant_1_conservation(self, scheduler: Scheduler) -> None:
        """Every rollout started is settled, or in the state; trained and carried ones are both.

        One that waits for a replica was admitted: it counts as started, and ends once like any other.
        """
        both: set[str] = set()
        held: set[str] = set()
        for group in scheduler.state.groups.values():
            names = {rollout.id for rollout in group.rollouts}
            assert not names & held, "a rollout is in two groups"
            self.started |= {rollout.id for rollout in group.rollouts if rollout.unstarted}
            held |= names
            if group.stage == "trained" or group.carried:
                both |= names
        assert set(self.settled) & held == both
        assert self.started <= set(self.settled) | held
        assert set(self.settled) <= self.started, f"never started: {set(self.settled) - self.started}"
        if scheduler.state.phase == "finished":
            assert set(self.settled) == self.started

    def invariant_2_no_token_beyond_the_bound_is_trained(
        self, rows: tuple[Row, ...], bound: int, outside: Outside
    ) -> None:
        """By the spans that the environment told with the payload that is trained."""
        for row in rows:
            for span in outside.spans[row.payload]:
                version = (span.lineage, span.number)
                assert version in row.masked or self.age(version) <= bound, (
                    f"{row.rollout}: a token of {version} is {self.age(version)} steps old, bound {bound}"
                )

    def invariant_5_a_failure_is_never_a_reward(self, command: Signal) -> None:
        """Each reward of a settled group is the one that the newest try at its score told."""
        assert command.rewards, "a group without rewards"
        for rollout, reward in command.rewards:
            assert self.scores[(rollout, *self.asked[rollout])] == reward

    def advantages_froze_when_the_group_settled(self, rows: tuple[Row, ...]) -> None:
        """A group is trained whole, with the advantages that it was given once."""
        groups: dict[str, dict[str, float]] = {}
        for row in rows:
            groups.setdefault(row.group, {})[row.rollout] = row.advantage
        for name, advantages in groups.items():
            assert advantages == self.frozen[name]

    def what_was_handed_over_waits_for_its_batch(self, scheduler: Scheduler) -> None:
        """Until the batch is released, its rollouts are in the queue and nobody settles them."""
        state = scheduler.state
        assert tuple(state.streamed) == self.gathered
        held = {rollout.id for group in state.groups.values() if group.streamed for rollout in group.rollouts}
        assert held == {row.rollout for row in self.gathered} or state.phase == "finished"
        stages = {group.stage for group in state.groups.values() if group.streamed}
        assert stages <= {"queued"}

    def invariant_7_no_sandbox_is_left(self, scheduler: Scheduler, outside: Outside) -> None:
        """Each one that runs is known, or was asked to end."""
        state = scheduler.state
        names = {str(key[1]) for key in outside.open if key[0] == "live"}
        assert state.phase == "finished" or names <= set(state.sandboxes), names - set(state.sandboxes)

    def invariant_8_something_is_awaited(self, scheduler: Scheduler, wake_at_s: float | None) -> None:
        """Each thing asked for has its deadline, and a WakeAt covers the first of them."""
        state = scheduler.state
        if state.phase == "finished":
            return
        assert state.deadlines, f"nothing is awaited in phase {state.phase}"
        assert wake_at_s is not None
        assert wake_at_s <= min(state.deadlines.values())
        missing = [key for key in awaited(scheduler) if key not in state.deadlines]
        assert not missing, f"no deadline for {missing}"

    def the_index_is_what_the_state_says(self, scheduler: Scheduler) -> None:
        """Built anew it is the same."""
        assert looked_up(scheduler.index) == looked_up(Index(scheduler.state))


def awaited(scheduler: Scheduler) -> list[str]:
    """Return the deadlines that there must be, by what the state says is pending."""
    state = scheduler.state
    keys: list[str] = []
    waiting = {key for key, asked in state.outage.waiting.items() if not asked}  # for a judge
    if waiting and len(waiting) == len(state.outage.waiting) and state.phase == "running":
        keys.append("judge")
    for group in state.groups.values():
        if group.dormant:
            continue
        if group.stage == "requested" and state.phase != "stopping":
            keys.append(f"task:{group.id}")
        if group.stage == "signalling" and group.id not in waiting:
            keys.append(f"signal:{group.id}")
        for rollout in group.rollouts:
            kinds = {"cancelling": "cancel", "parking": "park", "resuming": "resume"}
            if rollout.pending:
                keys.append(f"{kinds[rollout.pending]}:{rollout.id}")
            elif rollout.station == "running":
                keys.append(f"rollout:{rollout.id}")
            if rollout.station == "scoring" and group.stage == "running" and rollout.id not in waiting:
                keys.append(f"score:{rollout.id}")
    keys += [f"apply:{name}" for name, replica in state.replicas.items() if replica.pending is not None]
    keys += [f"restart:{name}" for name, replica in state.replicas.items() if replica.down]
    keys += [
        f"sandbox:{name}" for name, box in state.sandboxes.items() if box.stage in ("granted", "releasing")
    ]
    match state.trainer:
        case "training":
            keys.append("train")
        case "publishing":
            keys.append("publish")
        case "loading":
            keys.append("rollback" if state.trainer_joined else "restart:trainer")
        case "idle":
            pass
    if state.part_pending:
        keys.append("train")
    if state.saving_step >= 0:
        keys.append("checkpoint")
    if state.phase == "starting":
        keys.append("start")
    return keys
