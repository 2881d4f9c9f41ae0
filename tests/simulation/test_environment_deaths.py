"""Environment workers that die are started anew, and cost attempts, not rollouts."""

from dataclasses import replace

import pytest

from headway.core.commands import RestartWorker
from headway.matching.roles import SimSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.settings import QueueSettings, SchedulerSettings, StopSettings
from tests.simulation.ledger import all_commands, fates
from tests.simulation.scenarios import play_lives

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=8, bound=2, max_attempts=9),
    recovery=RecoverySettings(environment_restarts=99),
    stop=StopSettings(steps=8),
    num_environment_workers=2,
)
SIM = SimSettings(uses_sandbox=True, environment_dies_every_s=20.0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kills", [[], [80]])
def test_a_run_whose_workers_die_again_and_again_ends_with_all_its_steps(seed, kills):
    run, finish = play_lives(SETTINGS, SIM, seed, kills)
    if finish.outcome == "failed":  # one that dies while the run ends ends it so
        assert "environment worker" in finish.message
    else:
        assert finish.outcome == "steps"
        assert sorted(run.trained) == list(range(1, 9))
    assert not [fate for fate in fates(run.entries).values() if fate == "failed_infrastructure"]


def test_deaths_are_frequent_enough_to_say_something():
    runs = [play_lives(SETTINGS, SIM, seed, [])[0] for seed in range(10)]
    restarts = [
        c for run in runs for c in all_commands(run.entries, RestartWorker) if c.role == "environment"
    ]
    assert len(restarts) >= 20


def test_without_restarts_a_death_ends_the_run():
    settings = replace(SETTINGS, recovery=RecoverySettings(environment_restarts=0))
    _, finish = play_lives(settings, SIM, 1, [])
    assert (finish.outcome, finish.failed) == ("failed", True)
    assert finish.message in {f"environment worker e{index} was lost: simulated" for index in (0, 1)}
