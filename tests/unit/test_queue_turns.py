"""Rewards and advantages of turns on their way through the scheduler."""

from headway.algorithms.advantages.signal import signal_function
from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Score, Signal, StartRollout, Train
from headway.core.events import (
    ReplicaJoined,
    RolloutEnded,
    RunStarted,
    Scored,
    TaskOffered,
    WorkerJoined,
)
from headway.core.records import VersionSpan
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings

OPENING = (
    RunStarted(),
    WorkerJoined("trainer", "t"),
    WorkerJoined("environment", "e0"),
    ReplicaJoined("g0", 0, 0, 0, 8),
    TaskOffered(0, "train/0", 0),
)


def group(turn_rewards, lengths):
    """Settle one group of two and return its Signal and the scheduler."""
    queue = QueueSettings(group_size=2, batch_size=2, bound=0)
    scheduler = Scheduler(SchedulerSettings(queue=queue, eval=EvalSettings(num_tasks=0)))
    commands = [command for event in OPENING for command in scheduler.handle(event, 1.0)[0]]
    rollouts = [command.rollout for command in commands if isinstance(command, StartRollout)]
    for rollout, rewards, num in zip(rollouts, turn_rewards, lengths, strict=True):
        spans = (VersionSpan(0, 0, num),)
        ended = RolloutEnded(rollout, 0, f"p:{rollout}", spans, 2, 0, 4, num, False)
        (score,) = [c for c in scheduler.handle(ended, 2.0)[0] if isinstance(c, Score)]
        scored = Scored(rollout, 0, score.tries, 1.0, (), 0.1, 0.0, {}, rewards)
        commands = scheduler.handle(scored, 3.0)[0]
    (signal,) = [command for command in commands if isinstance(command, Signal)]
    return signal, scheduler


def test_signal_holds_lengths_and_rewards_of_turns_and_the_rows_hold_their_advantages():
    signal, scheduler = group([(1.0, 0.0), (0.0, 1.0)], [5, 7])
    assert signal.num_tokens == (5, 7)
    assert signal.turn_rewards == ((1.0, 0.0), (0.0, 1.0))
    answer = signal_function(AlgorithmSettings(advantage="process"))(signal)
    (train,) = [c for c in scheduler.handle(answer, 4.0)[0] if isinstance(c, Train)]
    assert tuple(row.turns for row in train.rows) == answer.turns
    assert all(len(row.turns) == 2 and row.advantage != 0 for row in train.rows)


def test_without_rewards_of_turns_nothing_of_them_is_written():
    signal, scheduler = group([(), ()], [5, 7])
    assert signal.turn_rewards == ()
    shaped = AlgorithmSettings(overlong_max_tokens=8, overlong_buffer_tokens=4)
    answer = signal_function(shaped)(signal)
    (train,) = [c for c in scheduler.handle(answer, 4.0)[0] if isinstance(c, Train)]
    assert [row.turns for row in train.rows] == [(), ()]
    assert train.rows[0].advantage > 0 > train.rows[1].advantage
