"""The contract of providers whose sandboxes keep no processes between commands: refusals in their place."""

import pytest

from headway.core.errors import SandboxError
from tests.contract.sandbox_contract import SandboxContract


class WithoutSpawns(SandboxContract):
    """What needs `spawn` is refused, by an error that says so."""

    tells_usage = False  # of a machine that is reached only by commands

    async def test_a_spawned_process_outlives_commands_and_dies_with_the_sandbox(self, provider, sandbox):
        assert not provider.spawns
        with pytest.raises(SandboxError, match="between commands"):
            await sandbox.spawn("server", ["sleep", "9"])
        for call in (sandbox.poll, sandbox.kill):
            with pytest.raises(SandboxError, match="between commands"):
                await call("server")

    test_kill_ends_a_spawned_process_and_what_it_started_and_nothing_else = None  # there is none
    test_a_spawned_process_that_ends_says_how = None  # there is none
    test_output_of_a_spawned_process_is_bounded_between_two_polls = None  # there is none

    async def test_a_paused_sandbox_makes_no_progress_and_its_time_does_not_count(self, provider, sandbox):
        assert not provider.pauses
        for call in (sandbox.pause, sandbox.resume):
            with pytest.raises(SandboxError, match="stand still"):
                await call()

    test_a_paused_sandbox_can_be_copied_and_terminated = None  # it cannot be paused
    test_a_sandbox_that_was_lost_while_paused_is_detected_at_resume = None  # it cannot be paused
    test_a_command_that_starts_while_its_sandbox_is_paused_makes_no_progress = None
