"""What a rollout asked for and was answered, in order, so that its coroutine can be run again elsewhere.

A coroutine that declares `replay` or `snapshot` is a function of its answers: rerun, it asks the same things
and is told what it was told before, by `said` and `called`, until the record ends and life goes on. A request
that differs, or a rollout that ends before its record, is a ReplayDivergedError; it is remembered, for an
environment might catch it.

Only what is complete is recorded: an answer that the environment gave up leaves no trace, and neither does a
call that was still running. Sandboxes run their calls one after the other, so complete ones come first.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.core.codec import from_plain, to_plain
from headway.core.errors import EnvironmentFault, SandboxError
from headway.core.protocols import ExecLimits, ExecResult, Polled, Sandbox, SandboxStats
from headway.core.records import Message

_RESULTS: dict[str, type[Any]] = {"exec": ExecResult, "poll": Polled, "stats": SandboxStats}


class ReplayDivergedError(EnvironmentFault):
    """A rerun asked for something else than before."""


@dataclass(slots=True)
class Said:
    """One say that was answered, or refused by an EnvironmentFault."""

    messages: list[Message]
    cap: int | None
    refused: str = ""  # the fault's words; "" when a turn answered it
    full: bool = False  # whether the fault was that the context had no room


@dataclass(slots=True)
class Call:
    """One call to the sandbox. `request` holds JSON values; bytes are base64."""

    op: Literal["exec", "write", "read", "upload", "download", "spawn", "poll", "kill", "stats"]
    request: dict[str, Any]
    result: Any = None  # JSON: what was returned, or the bytes read
    failed: str = ""  # the SandboxError's rule

    @classmethod
    def exec(
        cls,
        argv: Sequence[str],
        stdin: bytes,
        env: Mapping[str, str] | None,
        limits: ExecLimits | None,
        cwd: str = "",
    ) -> Call:
        """Return a command that is not run yet."""
        given = None if env is None else dict(env)
        bounds = None if limits is None else to_plain(limits)
        request = {"argv": list(argv), "stdin": _text(stdin), "env": given, "limits": bounds}
        return cls("exec", request | ({"cwd": cwd} if cwd else {}))

    @classmethod
    def spawn(
        cls,
        name: str,
        argv: Sequence[str],
        stdin: bytes,
        env: Mapping[str, str] | None,
        cwd: str,
        output_bytes: int,
    ) -> Call:
        """Return a long-lived process that is not started yet."""
        request: dict[str, Any] = {"name": name, "argv": list(argv), "stdin": _text(stdin), "cwd": cwd}
        request |= {"env": None if env is None else dict(env), "output_bytes": output_bytes}
        return cls("spawn", request)

    @classmethod
    def write(cls, path: str, data: bytes) -> Call:
        """Return a write that is not done yet."""
        return cls("write", {"path": path, "data": _text(data)})

    @classmethod
    def read(cls, path: str, max_bytes: int) -> Call:
        """Return a read that is not done yet."""
        return cls("read", {"path": path, "max_bytes": max_bytes})

    @classmethod
    def upload(cls, path: str, archive: bytes) -> Call:
        """Return an upload that is not done yet."""
        return cls("upload", {"path": path, "archive": _text(archive)})

    @classmethod
    def download(cls, path: str, max_bytes: int, max_files: int) -> Call:
        """Return a download that is not done yet."""
        return cls("download", {"path": path, "max_bytes": max_bytes, "max_files": max_files})

    async def run(self, sandbox: Sandbox) -> Any:
        """Do it and return what the sandbox returns."""
        request = self.request
        if self.op == "spawn":
            given: dict[str, Any] = {**request, "stdin": b64decode(request["stdin"])}
            return await sandbox.spawn(**given)
        if self.op == "poll":
            return await sandbox.poll(request["name"])
        if self.op == "kill":
            return await sandbox.kill(request["name"])
        if self.op == "stats":
            return await sandbox.stats()
        if self.op == "write":
            return await sandbox.write(request["path"], b64decode(request["data"]))
        if self.op == "read":
            return await sandbox.read(request["path"], request["max_bytes"])
        if self.op == "upload":
            return await sandbox.upload(request["path"], b64decode(request["archive"]))
        if self.op == "download":
            return await sandbox.download(request["path"], request["max_bytes"], request["max_files"])
        limits = None if request["limits"] is None else from_plain(ExecLimits, request["limits"])
        stdin = b64decode(request["stdin"])
        return await sandbox.exec(
            request["argv"], stdin=stdin, env=request["env"], limits=limits, cwd=request.get("cwd", "")
        )

    def answered(self, value: Any) -> None:
        """Keep what `run` returned."""
        self.result = _text(value) if isinstance(value, bytes) else to_plain(value)

    def answer(self) -> Any:
        """Return what `run` returned, or raise what it raised."""
        if self.failed:
            raise SandboxError(self.failed)
        if self.op in _RESULTS:
            return from_plain(_RESULTS[self.op], self.result)
        return b64decode(self.result) if self.op in ("read", "download") else None


@dataclass(slots=True)
class Record:
    """One attempt's record; `says[:num_says_known]` and `calls[:num_calls_known]` are of an earlier life."""

    kept: bool = False  # whether the environment's resume needs one
    says: list[Said] = field(default_factory=list[Said])
    calls: list[Call] = field(default_factory=list[Call])
    snapshot: str = ""  # of the sandbox, a digest; "" for none
    num_calls_in_snapshot: int = 0
    num_says_known: int = 0
    num_calls_known: int = 0
    diverged: ReplayDivergedError | None = None
    _says_told: int = 0
    _calls_told: int = 0

    def rerun(self) -> None:
        """Tell everything again from the beginning."""
        self.num_says_known, self.num_calls_known = len(self.says), len(self.calls)

    @property
    def telling(self) -> bool:
        """Whether something of the record is still to be told."""
        return self._says_told < self.num_says_known or self._calls_told < self.num_calls_known

    def said(self, messages: Sequence[Message], cap: int | None) -> Said | None:
        """Return the recorded answer to these messages, None when the record has no more.

        Raises ReplayDivergedError when other messages were said there.
        """
        if self._says_told >= self.num_says_known:
            return None
        at, known = self._says_told, self.says[self._says_told]
        self.must_equal(f"say {at}", (known.messages, known.cap), (list(messages), cap))
        self._says_told += 1
        return known

    def called(self, call: Call) -> Call | None:
        """Return the recorded result of a call, None when the record has no more.

        Raises ReplayDivergedError when another call was made there.
        """
        if self._calls_told >= self.num_calls_known:
            return None
        at, known = self._calls_told, self.calls[self._calls_told]
        self.must_equal(f"sandbox call {at}", (known.op, known.request), (call.op, call.request))
        self._calls_told += 1
        return known

    def must_equal(self, what: str, known: object, now: object) -> None:
        """Raise ReplayDivergedError unless a rerun asks what was asked before."""
        if known != now:
            self.diverged = ReplayDivergedError(
                f"rerun from its record, a rollout must ask the same again, and {what} differs: "
                f"{_short(now)} instead of {_short(known)}",
                remedy='Only an environment that is a function of its answers may declare resume = "replay" '
                'or "snapshot"',
            )
            raise self.diverged

    def must_be_told(self) -> None:
        """Raise ReplayDivergedError when the rollout ended before its record, or caught such an error."""
        if self.diverged is None and self.telling:
            told = f"{self._says_told} says and {self._calls_told} sandbox calls"
            known = f"{self.num_says_known} and {self.num_calls_known}"
            self.diverged = ReplayDivergedError(
                f"rerun from its record, a rollout ended after {told} of {known} recorded ones"
            )
        if self.diverged is not None:
            raise self.diverged

    def to_plain(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "says": [
                {
                    "messages": to_plain(said.messages),
                    "cap": said.cap,
                    "refused": said.refused,
                    "full": said.full,
                }
                for said in self.says
            ],
            "calls": [dataclasses.asdict(call) for call in self.calls],
            "snapshot": self.snapshot,
            "num_calls_in_snapshot": self.num_calls_in_snapshot,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Record:
        """Rebuild a record, to be told again."""
        record = cls(
            kept=True,
            says=from_plain(list[Said], plain["says"]),
            calls=from_plain(list[Call], plain["calls"]),
            snapshot=plain["snapshot"],
            num_calls_in_snapshot=plain["num_calls_in_snapshot"],
        )
        record.rerun()
        return record


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _short(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
