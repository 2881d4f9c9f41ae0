"""Swaps of weights whose caller waits until all KV is of the new weights."""

from __future__ import annotations

from collections.abc import Collection, Container
from concurrent.futures import Future
from dataclasses import dataclass

from headway.core.clock import stopwatch
from headway.core.errors import EngineError
from headway.generator.live import Live


@dataclass(slots=True)
class _Rebuild:
    """Running requests whose KV is being computed anew after a swap."""

    lives: set[Live]
    pause_s: float
    done: Future[float]  # gets the seconds without decoding


class Rebuilds:
    """Those under way."""

    def __init__(self) -> None:
        self._all: list[_Rebuild] = []

    def add(self, stale: Collection[Live], began: float, done: Future[float]) -> None:
        """Wait for these, whose weights changed; `done` gets the seconds without decoding since `began`.

        Log-probs of prompts whose KV is gone are of the older weights, and are forgotten.
        """
        lives = set[Live]()
        for live in stale:
            if live.slot is not None and not live.lacking:
                continue
            if live.scores is not None:
                live.scores.forget()
            if live.slot is not None:
                live.enter("prefill", began)
                lives.add(live)
        self._all.append(_Rebuild(lives, stopwatch() - began, done))

    def pause(self, seconds: float) -> None:
        """Count time without decoding."""
        for rebuild in self._all:
            rebuild.pause_s += seconds

    def settle(self, running: Container[Live]) -> None:
        """Answer the callers that have nothing left to wait for: what does not run needs no KV."""
        for rebuild in list(self._all):
            rebuild.lives = {live for live in rebuild.lives if live in running and live.lacking}
            if not rebuild.lives:
                self._all.remove(rebuild)
                rebuild.done.set_result(rebuild.pause_s)

    def fail(self, message: str) -> None:
        """Answer all callers that the engine has ended."""
        for rebuild in self._all:
            rebuild.done.set_exception(EngineError(message))
        self._all.clear()
