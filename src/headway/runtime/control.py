"""A channel into a run that goes on: settings change, an evaluation is asked for, the run is stopped.

The driver's side consumes requests, one a connection, and puts what follows from them into the driver's
inbox, where they are events like all others; it waits for nothing but the request itself, and what takes time
happens in a thread. The address is a name in the kernel's abstract space that a run's `life.json` leads to:
it goes with the driver and leaves nothing behind, and both ends are of the same user (see `wire`).
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from headway.config.live import not_live
from headway.config.stages import at_this_stage, change, idle_at_this_stage, in_words, value_of
from headway.core.codec import to_plain
from headway.core.errors import ConfigError, HeadwayError, RunDirectoryError, UserError
from headway.core.events import EvalDue, SettingChanged, StopAsked
from headway.matching.control_levers import LEVERS
from headway.runtime import directory
from headway.runtime.wire import connect, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headway.config.stages import Change
    from headway.core.events import Event
    from headway.runtime.wire import Link

STOP = "headway stop"  # the reason of a StopAsked that somebody asked for in words, not by a signal
_LOOK_S = 0.2  # between two looks whether it is there
_ANSWER_S = 15.0  # that the driver may take
_REQUEST_S = 5.0  # that a request may take to arrive


def control_address(run_id: str, pid: int) -> str:
    """Return where the driver of a life listens."""
    return f"headway-{run_id}-{pid}-control"


class Control:
    """The driver's side.

    Args:
        config_path: the run's config.toml.
        earlier: settings that changed before, in order.
        emit: takes events for the driver's inbox.
    """

    def __init__(self, config_path: Path, earlier: Sequence[Change], emit: Callable[[Event], None]) -> None:
        self._config_path = config_path
        self._changes = list(earlier)
        self._emit = emit
        self._one_at_a_time = asyncio.Lock()

    def took_effect(self, event: SettingChanged) -> None:
        """Follow what the run's controller changed: requests are answered by the settings of the moment."""
        if event.by == "control":
            self._changes.append((event.key, event.value))

    async def serve(self, at: str) -> None:
        """Answer requests until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            server = await listen(at, lambda link: tasks.create_task(self._meet(link)))
            try:
                await server.serve_forever()
            finally:
                server.close()

    async def _meet(self, link: Link) -> None:
        """Answer one request; whatever is wrong with it is its sender's to know."""
        try:
            link.send(*await self._answer(link))
            await link.flush()
        finally:
            link.close()

    async def _answer(self, link: Link) -> tuple[Any, ...]:
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = await link.receive()
            if request is None:
                return ("refused", None)  # the sender is gone
            async with self._one_at_a_time:
                return ("done", await self._carry_out(*request))
        except UserError as error:
            return ("refused", error)
        except Exception as error:  # of a sender of another version, perhaps; the run goes on all the same
            return ("refused", HeadwayError(f"the run cannot do that ({type(error).__name__}: {error})"))

    async def _carry_out(self, kind: str, words: tuple[str, ...]) -> list[str]:
        match kind:
            case "set":
                return await self._set(words)
            case "evaluate":
                return await self._evaluate()
            case "stop":
                self._emit(StopAsked(words[0]))
                return ["the run finishes its step, then saves and ends"]
            case _:
                raise ValueError(kind)

    async def _set(self, overrides: tuple[str, ...]) -> list[str]:
        path, earlier = self._config_path, tuple(self._changes)
        problems = not_live(overrides)
        try:
            config, changes = await asyncio.to_thread(change, path, earlier, overrides)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        before = await asyncio.to_thread(at_this_stage, path, earlier)
        lines = await asyncio.to_thread(idle_at_this_stage, config, path, earlier, overrides)
        for key, value in changes:
            self._emit(SettingChanged(key, to_plain(value), checked=True))
            lines.append(f"{key} = {value!r} from now on (was {in_words(before, key)})")
        if config.control.mode == "on":
            kept = dict.fromkeys(override.partition("=")[0].strip() for override in overrides)
            for key in kept:
                if key in LEVERS and key not in dict(changes):
                    self._emit(SettingChanged(key, to_plain(value_of(config, key)), checked=True))
                    lines.append(f"{key} stays {in_words(config, key)}; control leaves it alone from now on")
        self._changes += changes
        return lines or ["nothing changes: the settings have these values already"]

    async def _evaluate(self) -> list[str]:
        config = await asyncio.to_thread(at_this_stage, self._config_path, tuple(self._changes))
        if not config.eval.num_tasks:
            raise UserError(
                "an evaluation needs tasks",
                value=0,
                key="eval.num_tasks",
                remedy="Set it with `headway set RUN eval.num_tasks=N`, and ask again",
            )
        self._emit(EvalDue())
        return ["the newest version is evaluated next, unless it was already"]


def ask(run_dir: Path, *request: Any) -> list[str]:
    """Send a request to the driver of a run and return its answer's lines.

    Raises RunDirectoryError when no process drives the run or it does not answer, and what the driver raised.
    """
    record = directory.life_record(run_dir)
    if record is None or directory.driver_pid(run_dir) is None:
        raise RunDirectoryError(
            f"no process drives the run {run_dir}",
            remedy="`headway resume RUN KEY=VALUE` changes settings when a run goes on.",
        )
    answer = asyncio.run(_ask(control_address(record.run_id, record.pid), request))
    if answer is None:
        raise RunDirectoryError(
            f"process {record.pid} drives the run {run_dir} and does not answer",
            remedy="It may be starting or ending; try again. It answers on the machine where it runs only.",
        )
    if answer[0] == "refused":
        raise answer[1]
    return answer[1]


async def _ask(at: str, request: tuple[Any, ...]) -> tuple[Any, ...] | None:
    link = await connect(at)
    if link is None:
        return None
    try:
        link.send(*request)
        async with asyncio.timeout(_ANSWER_S):
            return await link.receive()
    except TimeoutError:
        return None
    finally:
        link.close()


def wait_for_the_end(run_dir: Path) -> None:
    """Return when no process drives the run any more."""
    while directory.driver_pid(run_dir) is not None:
        threading.Event().wait(_LOOK_S)
