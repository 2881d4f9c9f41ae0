"""A worker process that runs one package in its own virtual environment.

Any number of requests are under way at once. Two threads for each child: one reads its answers, and ends when
the child does, which fails what is under way; the other keeps the end of what it writes to stderr. The next
request starts another child. Safe to be called from several threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import threading
import weakref
from collections import deque
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any, cast

from headway.core.errors import (
    DeadlineError,
    EnvironmentFault,
    EnvironmentSetupError,
    ToolError,
    WorkerDiedError,
)
from headway.rewards.faults import RewardRaisedFault
from headway.sandbox.keeper import below, kill

SCRIPT = Path(__file__).parent / "worker" / "headway_child.py"
_CANCEL_S = 20.0  # from a request's cancellation to its answer; a child that is silent is ended
_STACK_S = 0.5
_KEPT_LINES = 40  # of stderr
_SHOWN_CHARS = 1500
_PASSED = ("HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
           "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "http_proxy",
           "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")  # fmt: skip

Answer = dict[str, Any]


class PackageProcess:
    """One child, started when it is asked something.

    Args:
        name: of the environment, for messages.
        python: of the virtual environment.
        load: the first request, which loads the package.
        load_timeout_s: for its answer.
        pass_env: names of further environment variables.
    """

    def __init__(
        self, name: str, python: Path, load: Answer, load_timeout_s: float, pass_env: tuple[str, ...] = ()
    ) -> None:
        self._name = name
        self._python = python
        self._load = load
        self._load_timeout_s = load_timeout_s
        self._pass_env = pass_env
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._loaded: Answer = {}
        self.num_started = 0

    @property
    def num_running(self) -> int:
        """Requests under way."""
        return 0 if self._child is None else len(self._child.pending)

    @property
    def life(self) -> str:
        """What tells the child that runs now from every other one, "" where none does."""
        return self._child.token if self._child is not None and self._child.alive else ""

    def loaded(self) -> Answer:
        """Start the child where none runs; return what loading the package told."""
        with self._lock:
            if self._child is None or not self._child.alive:
                self._start()
            return self._loaded

    def ask(self, request: Answer, timeout_s: float) -> Answer:
        """Return the child's answer.

        Raises WorkerDiedError when the child dies, DeadlineError when it is silent for so long (it is ended
        then), and what the answer says otherwise.
        """
        self.loaded()
        assert self._child is not None
        return self._child.ask(request, timeout_s)

    async def asked(self, request: Answer) -> Answer:
        """Return the child's answer, however long it takes; a cancellation ends what the child does.

        Raises like `ask`.
        """
        await asyncio.to_thread(self.loaded)
        child = self._child
        assert child is not None
        number, future = child.send(request)
        try:
            return child.taken(await asyncio.wrap_future(future))
        except asyncio.CancelledError:
            child.cancel(number)
            raise

    def close(self) -> None:
        """End the child; another request starts one anew."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        child = self._child = _Child(self._name, [str(self._python), str(SCRIPT)], self._environment())
        weakref.finalize(self, child.end)
        self.num_started += 1
        try:
            loaded = child.ask({"do": "load", **self._load}, self._load_timeout_s)
        except BaseException:
            self._end()
            raise
        if self._loaded and loaded != self._loaded:
            self._end()
            raise EnvironmentFault(f"{self._name} must have the same tasks each time that it is loaded")
        self._loaded = loaded

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _environment(self) -> dict[str, str]:
        own = {name: os.environ[name] for name in (*_PASSED, *self._pass_env) if name in os.environ}
        folders = [str(self._python.parent), os.environ.get("PATH", os.defpath)]
        return own | {
            "PATH": os.pathsep.join(folders),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }


class _Child:
    """One process; what is asked of it while it lives, and the end of what it says."""

    def __init__(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        self._name = name
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._why = ""  # it was ended
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self.token = secrets.token_hex(8)
        self.pending: dict[int, Future[Answer]] = {}
        self.alive = True
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, request: Answer) -> tuple[int, Future[Answer]]:
        future: Future[Answer] = Future()
        number = next(self._numbers)
        with self._lock:
            if not self.alive:
                raise self._death()
            self.pending[number] = future
            self._write({**request, "id": number})
        return number, future

    def ask(self, request: Answer, timeout_s: float) -> Answer:
        _, future = self.send(request)
        try:
            return self.taken(future.result(timeout_s))
        except TimeoutError:
            self.end()
            what = "be loaded" if request["do"] == "load" else f"answer ({request['do']})"
            rule = f"{self._name} must {what} within {timeout_s:g} s"
            raise DeadlineError(rule, value=self._tail() or None) from None

    def cancel(self, number: int) -> None:
        """Cancel a request; a child that does not answer that is stuck, and is ended."""
        with self._lock:
            if number not in self.pending or not self.alive:
                return
            self._write({"id": number, "do": "cancel"})
        timer = threading.Timer(_CANCEL_S, self._end_if_stuck, [number])
        timer.daemon = True
        timer.start()

    def taken(self, answer: Answer) -> Answer:
        """Return what an answer holds, or raise what it says."""
        if "ok" in answer:
            return answer["ok"]
        error = answer["error"]
        text = f"{self._name}: {error['text']}"
        match error["owner"]:
            case "setup":
                raise EnvironmentSetupError(
                    f"the package {self._name} refused its arguments: {error['text']}",
                    key="environment.args",
                    remedy="Change environment.args.args; the package's own page says what it takes",
                )
            case "infrastructure":
                raise ToolError(text)
            case "reward":
                raise RewardRaisedFault(text)
            case _:
                raise EnvironmentFault(text)

    def end(self) -> None:
        """End the process and what the package started; idempotent."""
        if self._process.poll() is None:
            kill(below(self._process.pid))  # tool servers have sessions of their own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        self._process.kill()
        self._process.wait()

    def _end_if_stuck(self, number: int) -> None:
        if number in self.pending and self.alive:
            self._why = f", for it did not react to a cancellation within {_CANCEL_S:g} s"
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)  # it writes where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STACK_S)
            self.end()

    def _write(self, message: Answer) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; `_read` tells
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            answer = cast("Answer", json.loads(line))
            with self._lock:
                future = self.pending.pop(answer["id"], None)
            if future is not None and not future.cancelled():
                with contextlib.suppress(InvalidStateError):  # cancelled in between
                    future.set_result(answer)
        self._process.wait()
        self._listener.join(2.0)
        stdout.close()
        with self._lock:
            self.alive = False
            left, self.pending = self.pending, {}
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for future in left.values():
            with contextlib.suppress(InvalidStateError):  # likewise
                future.set_exception(self._death())

    def _listen(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        for line in stderr:
            self._said.append(line.decode(errors="replace").rstrip())
        stderr.close()

    def _tail(self) -> str:
        return "\n".join(self._said.copy())[-_SHOWN_CHARS:]

    def _death(self) -> WorkerDiedError:
        code = self._process.returncode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        said = self._tail()
        rule = f"the worker process of {self._name} ended {how}{self._why}" + (
            f"; it last wrote: {said}" if said else ""
        )
        return WorkerDiedError(rule)
