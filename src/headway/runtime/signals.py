"""The advantage function and the user's verdict in a thread of their own: they may be a user's, and slow.

Consumes Signal commands; answers each by GroupSignal, or by CommandRefused when a function raises. The
thread is a daemon: a function that never returns is the scheduler's deadline to find, and holds up no exit.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError
from headway.core.events import CommandRefused, Event
from headway.core.hooks import place_in_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headway.core.commands import Signal
    from headway.core.events import GroupSignal


class SignalThread:
    """Turns rewards into advantages, one group after the other.

    Args:
        advantages: what a settled group's rewards make.
        emit: takes the answer; called in this thread.
        verdict: rewards and sampled tokens of one group in, whether it is kept and why out; None keeps all.
    """

    def __init__(
        self,
        advantages: Callable[[Signal], GroupSignal],
        emit: Callable[[Event], None],
        verdict: Callable[[Sequence[float], Sequence[int]], tuple[bool, str]] | None = None,
    ) -> None:
        self._advantages = advantages
        self._verdict = verdict
        self._emit = emit
        self._commands: queue.SimpleQueue[Signal] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="advantages", daemon=True).start()

    def ask(self, command: Signal) -> None:
        """Queue one group."""
        self._commands.put(command)

    def _run(self) -> None:
        while True:
            self._emit(self._answer(self._commands.get()))

    def _answer(self, command: Signal) -> Event:
        function = "advantage function"
        try:
            signal = self._advantages(command)
            if command.payloads:
                signal = replace(signal, rewards=tuple(reward for _, reward in command.rewards))
            if self._verdict is not None:
                function = "verdict (acceptance.verdict)"
                rewards = [reward for _, reward in command.rewards]
                keep, reason = self._verdict(rewards, command.num_tokens)
                signal = replace(signal, keep=keep, reason=reason)
        except Exception as error:
            place = place_in_hook(error)
            at = f" at {place}" if place else ""
            named = "" if isinstance(error, HeadwayError) else f" {type(error).__name__}"
            message = f"the {function} raised{named}{at}: {error}"
            return CommandRefused("Signal", command.group, message)
        return signal
