"""Rewards of whole groups, in a thread of their own with an event loop: their function may ask a judge.

Consumes Signal commands that name their payloads; waits for the function, for several groups at once, each
within its own limit. What it returns takes the place of the rewards, and the command goes on to the
advantage. Where the judge fails, the answer says so, and the scheduler asks again or drops the group: a
failure of the infrastructure is no reward. Where the function itself breaks its contract, the command is
refused, which ends the run. The thread is a daemon, as that of the advantages is.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError
from headway.core.events import CommandRefused, Event, GroupSignal
from headway.core.payload import read_payload
from headway.rewards.faults import JudgeAwayError, JudgeError
from headway.rewards.group import Member

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headway.core.commands import Signal
    from headway.rewards.group import GroupReward


class GroupRewardThread:
    """Makes the rewards of groups.

    Args:
        function: the members of a group in, their rewards out.
        payload_dir: of the run.
        emit: takes what ends a command here; called in this thread.
        go_on: takes the command with its new rewards; likewise.
    """

    def __init__(
        self,
        function: GroupReward,
        payload_dir: Path,
        emit: Callable[[Event], None],
        go_on: Callable[[Signal], None],
    ) -> None:
        self._function = function
        self._payload_dir = payload_dir
        self._emit = emit
        self._go_on = go_on
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="group rewards", daemon=True).start()

    def ask(self, command: Signal) -> None:
        """Begin with one group."""
        asyncio.run_coroutine_threadsafe(self._answer(command), self._loop)

    async def _answer(self, command: Signal) -> None:
        try:
            members = await asyncio.to_thread(self._members, command)
            rewards = await self._function(members)
        except JudgeError as error:
            cause = "judge_away" if isinstance(error, JudgeAwayError) else "judge"
            self._emit(GroupSignal(command.group, (), keep=False, reason=str(error), failed=cause))
        except HeadwayError as error:
            self._emit(CommandRefused("Signal", command.group, str(error)))
        except Exception as error:  # nothing here may end without an answer
            words = f"the rewards of a group failed: {type(error).__name__}: {error}"
            self._emit(CommandRefused("Signal", command.group, words))
        else:
            pairs = zip(command.rewards, rewards, strict=True)
            self._go_on(replace(command, rewards=tuple((rollout, value) for (rollout, _), value in pairs)))

    def _members(self, command: Signal) -> list[Member]:
        turns = command.turn_rewards or ((),) * len(command.rewards)
        found: list[Member] = []
        for (rollout, reward), num, rewards, at in zip(
            command.rewards, command.num_tokens, turns, command.payloads, strict=True
        ):
            payload = read_payload(self._payload_dir, at)
            of = payload.outcome, payload.transcript
            found.append(Member(rollout, command.task_id, reward, num, rewards, *of))
        return found
