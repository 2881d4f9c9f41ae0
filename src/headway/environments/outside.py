"""What tools outside the sandbox share: secrets, a rate, a cache, and what is told to whom.

A secret is named by an environment variable and read when it is used. It goes to the service and nowhere
else: in what a service says it is blotted out, for that goes to the policy, the transcript and the journal.

Whatever keeps a service from answering is a ToolError, an infrastructure failure: it ends the rollout, and is
never told to the policy, let alone rewarded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import html
import json
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, urlsplit

from headway.core.clock import stopwatch
from headway.core.errors import EnvironmentSetupError, ToolError
from headway.core.settings import Problem, setting
from headway.environments.arguments import read_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BLOT = "[secret]"
_SHORT = 4  # a secret of fewer characters stands in any text, and blotting it out would tell it
_LINE = 16  # a line of a longer secret, such as a private key, is blotted out by itself from here on


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
        in_headers: they become headers, which are one line of ASCII.
    """

    def __init__(self, variables: Mapping[str, str], owner: str, *, in_headers: bool = True) -> None:
        self._variables = dict(variables)
        self._owner = owner
        self._in_headers = in_headers

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
            if self._in_headers and not (value.isascii() and value.isprintable()):
                raise ToolError(  # else the client would say so, and the value with it
                    f"{self._owner} sends {variable} as a header, so it must be one line of ASCII",
                    remedy="Set it to the key alone, without quotes and line breaks",
                )
            found[name] = f"{before}{space}{value}"
        return found

    def hidden(self, text: str) -> str:
        """Return a text without the secrets, as they are and as JSON, a URL or HTML would write them."""
        for form in self._variables.values():
            value = os.environ.get(form.rpartition(" ")[2], "").strip()
            for written in _written(value):
                if written in text:
                    text = text.replace(written, _BLOT)
        return text


def _written(value: str) -> Iterator[str]:
    """Yield the forms in which a service may repeat a secret, longest first."""
    parts = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE)}
    forms: set[str] = set()
    for part in parts:
        for plain in (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], repr(part)[1:-1]):
            forms |= {plain, plain.replace("/", "\\/")}
        forms |= {part, quote(part, safe=""), quote(part), quote_plus(part), html.escape(part)}
    yield from sorted((form for form in forms if len(form) >= _SHORT), key=lambda form: (-len(form), form))


def limits_of(given: Mapping[str, Any], owner: str) -> OutsideLimits:
    """Return limits; raise EnvironmentSetupError that names the first one that is none."""
    found, problems = read_arguments(owner, OutsideLimits, given)
    if found is None:
        known = ", ".join(field.name for field in dataclasses.fields(OutsideLimits))
        raise EnvironmentSetupError(
            f"limits of {owner} must be some of {known}, each within its bounds: {problems[0].key} is not",
            value=problems[0].value,
            remedy="See docs/tools.md",
        )
    return found


def address_problems(url: str) -> list[Problem]:
    """Say when an address holds a secret, or is none."""
    try:
        parts = urlsplit(url)
        is_one = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return [Problem("url", None, "must be an address", "As in https://search.example/v1/query")]
    if parts.username is not None or parts.password is not None:
        rule = "must hold no name or password: settings are shown and kept"
        return [Problem("url", None, rule, 'Put them into secrets, as in {"Authorization": "Basic MY_KEY"}')]
    if not is_one:
        return [Problem("url", url, "must name a host", "As in https://search.example/v1/query")]
    return []


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
