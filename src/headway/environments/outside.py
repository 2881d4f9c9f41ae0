"""What tools outside the sandbox share: secrets, a rate, a cache, and what is told to whom.

A secret is named by an environment variable and read when it is used. It goes to the service and nowhere
else: in what a service says it is blotted out, for that goes to the policy, the transcript and the journal.

Whatever keeps a service from answering is a ToolError, an infrastructure failure: it ends the rollout, and is
never told to the policy, let alone rewarded.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import ToolError
from headway.core.settings import setting

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOT = "[secret]"
_SHORT = 4  # a secret of fewer characters stands in any text, and blotting it out would tell it


@dataclass(frozen=True, slots=True)
class OutsideLimits:
    """Limits of a tool outside the sandbox, in each environment worker."""

    timeout_s: float = setting(30.0, "Seconds for a call's answer, each try.", gt=0)
    tries: int = setting(3, "Tries of a call before its rollout fails.", ge=1, le=20)
    backoff_s: float = setting(1.0, "Seconds before the second try; they double with each further one.", ge=0)
    calls_per_s: float = setting(0.0, "Calls a second, of each environment worker; 0 for no limit.", ge=0)
    cache_entries: int = setting(
        1024, "Answers that are kept and given again to equal calls; 0 for none.", ge=0
    )
    max_chars: int = setting(8000, "Characters of an answer; what is longer loses its middle.", ge=16)


class Secrets:
    """Values that are read from the environment: headers of requests, variables of a server.

    Args:
        variables: what each is called where it is used -> the environment variable that holds it, after
            words that stand before it, as in "Bearer SEARCH_KEY".
        owner: of the tool, for messages.
    """

    def __init__(self, variables: Mapping[str, str], owner: str) -> None:
        self._variables = dict(variables)
        self._owner = owner

    def values(self) -> dict[str, str]:
        """Return the secrets; raise ToolError when one is not there."""
        found: dict[str, str] = {}
        for name, form in self._variables.items():
            before, space, variable = form.rpartition(" ")
            value = os.environ.get(variable, "").strip()
            if not value:
                raise ToolError(
                    f"{self._owner} needs the environment variable {variable}",
                    remedy="Set it where Headway is started",
                )
            found[name] = f"{before}{space}{value}"
        return found

    def hidden(self, text: str) -> str:
        """Return a text without the secrets."""
        for form in self._variables.values():
            value = os.environ.get(form.rpartition(" ")[2], "").strip()
            if len(value) >= _SHORT:
                text = text.replace(value, _BLOT)
        return text


class Pace:
    """Lets calls begin at a rate, in the order in which they ask."""

    def __init__(self, calls_per_s: float) -> None:
        self._gap_s = 1 / calls_per_s if calls_per_s else 0.0
        self._next_s = 0.0

    async def wait(self) -> None:
        """Wait for the next place."""
        if not self._gap_s:
            return
        now = stopwatch()
        begins = max(now, self._next_s)
        self._next_s = begins + self._gap_s
        if begins > now:
            await asyncio.sleep(begins - now)


class Cache:
    """The answers that were given last, by call."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._kept: OrderedDict[str, str] = OrderedDict()
        self.num_hits = 0

    def get(self, call: str) -> str | None:
        """Return the answer to an equal call, None when none is kept."""
        if (found := self._kept.get(call)) is not None:
            self._kept.move_to_end(call)
            self.num_hits += 1
        return found

    def put(self, call: str, answer: str) -> None:
        """Keep an answer."""
        if self._entries:
            self._kept[call] = answer
            self._kept.move_to_end(call)
            while len(self._kept) > self._entries:
                self._kept.popitem(last=False)


class Again(Exception):
    """A try that failed and may be repeated; `after_s` is what the service asks to wait, 0 without."""

    def __init__(self, words: str, after_s: float = 0.0) -> None:
        super().__init__(words)
        self.after_s = after_s


async def pause(limits: OutsideLimits, number: int, again: Again) -> None:
    """Wait after try `number`, counted from 1."""
    await asyncio.sleep(min(max(limits.backoff_s * 2 ** (number - 1), again.after_s), 60.0))
