"""The `harness` environment: a program of somebody else's plays the rollout, inside its sandbox.

The program is started by `command` with OPENAI_BASE_URL and OPENAI_API_KEY, which reach this rollout and
nothing else; whatever it asks is answered by the policy and trained. When it has ended, what it left in /work
goes into a fresh sandbox, the task's hidden files over it, and the test command decides: exit code 0 is 1,
anything else 0. A program that left nothing to collect, or too much, has 0. One that ends without having
asked anything is a failure of the environment, no reward.
"""

from __future__ import annotations

import random
import shlex
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.core.errors import EnvironmentFault, EnvironmentSetupError, SandboxError
from headway.core.protocols import Chat, ExecLimits, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.environments.harness.rows import Row, archive, read_rows
from headway.environments.harness.settings import HarnessSettings
from headway.environments.supervised import OverdueError, supervise
from headway.environments.tasks import check_position, task_id
from headway.rewards.hidden import make_way

if TYPE_CHECKING:
    from headway.core.protocols import ExecResult

_PROMPT_FILE = ".prompt.txt"
_MAX_FILES = 10_000  # that are collected
_MAX_DEPTH = 120  # of their folders
_GRACE_S = 10.0  # of a command that is ended


class Harness:
    """Any program that speaks the OpenAI API, run in the sandbox by a command; a test scores what it left."""

    name = "harness"
    settings_type = HarnessSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = True
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: HarnessSettings, seed: int) -> None:
        self._settings = settings
        rows = read_rows(settings.tasks, "train", "tasks")
        held_out = [row for row in rows if row.get("split", "train") != "train"]
        train = [row for row in rows if row.get("split", "train") == "train"]
        if settings.eval_tasks:
            held_out = read_rows(settings.eval_tasks, "eval", "eval_tasks")
        elif not settings.tasks.endswith(".jsonl"):
            held_out = read_rows(settings.tasks, "eval", "tasks")
        random.Random(seed).shuffle(train)
        self._rows = {"train": train, "eval": held_out}
        if not train:
            rule = "there must be a task to train on"
            raise EnvironmentSetupError(
                rule,
                key="environment.args.tasks",
                value=settings.tasks,
                remedy='Add a row, or leave "split": "eval" out of some',
            )
        if settings.files and not Path(settings.files).expanduser().is_dir():
            rule = "the folder of files must be there"
            raise EnvironmentSetupError(
                rule,
                value=settings.files,
                key="environment.args.files",
                remedy="Make it, or name another one",
            )
        untested = next((row for row in (*train, *held_out) if not self._test(row)), None)
        if untested is not None:
            rule = f"a task needs a test, its own or environment.args.test: {untested['prompt'][:60]!r}"
            raise EnvironmentSetupError(
                rule,
                key="environment.args.test",
                remedy='Give the row a "test", or set environment.args.test for all',
            )

    def num_tasks(self, split: str) -> int | None:
        """Return how many tasks there are."""
        return len(self._rows.get(split, ()))

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; `level` keeps those of that level."""
        rows = self._rows.get(split, [])
        if level is not None:
            rows = [row for row in rows if row.get("level", 0) == level]
            if not rows:
                raise EnvironmentSetupError(
                    f"no {split} task has this level",
                    value=level,
                    remedy="Leave the level out of [curriculum], or give tasks of it",
                )
            index %= len(rows)
        check_position(split, index, len(rows))
        row = rows[index]
        return Task(task_id(split, index, level), split, int(row.get("level", 0)), row)

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the task's text; what the program makes of it is its own."""
        return [Message("user", task.payload["prompt"])]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Run the program to its end, then collect what it left."""
        settings, row = self._settings, task.payload
        files = {**row.get("files", {}), _PROMPT_FILE: row["prompt"]}
        await sandbox.upload(".", archive(files, settings.files))
        data: dict[str, Any] = {"rc": None, "cause": "wall", "stdout": "", "stderr": ""}
        async with chat.endpoint() as endpoint, sandbox.serve(0, endpoint.handler) as port:
            base_url = f"http://127.0.0.1:{port}/v1"
            words = {
                "prompt": row["prompt"],
                "prompt_file": _PROMPT_FILE,
                "base_url": base_url,
                "key": endpoint.key,
                "model": "policy",
                "id": row.get("id", task.id),
            }
            env = {name: str(value).format(**words) for name, value in settings.env.items()}
            env = {
                "OPENAI_BASE_URL": base_url,
                "OPENAI_API_BASE": base_url,
                "OPENAI_API_KEY": endpoint.key,
            } | env
            argv = [word.format(**words) for word in settings.command]
            before_s = chat.answering_s
            work = sandbox.exec(argv, env=env, limits=ExecLimits(settings.wall_s))
            try:
                result = await supervise(
                    work, lambda: settings.timeout_s + chat.answering_s - before_s, _GRACE_S
                )
            except OverdueError:
                data["stderr"] = f"the program ran for more than {settings.timeout_s:g} s (timeout_s)"
            else:
                data |= self._ending(result)
        if chat.answering_s == 0:
            raise EnvironmentFault(
                f"the program must ask the policy something; it ended by {data['cause']} with exit code "
                f"{data['rc']}: {(data['stderr'] or data['stdout'])[-1000:].strip()!r}",
                remedy="Run it with `headway env try`; it reaches the policy at OPENAI_BASE_URL",
            )
        try:
            left = await sandbox.download(settings.collect, settings.max_collected_mb << 20, _MAX_FILES)
            data["files"] = b64encode(left).decode()
        except SandboxError:
            data["files"], data["lost"] = "", await self._why_lost(sandbox)
            if not data["lost"]:
                raise  # nothing that the program did
        return Outcome(data)

    async def _why_lost(self, sandbox: Sandbox) -> str:
        """Return why what the program left cannot be collected, "" where that is not its doing."""
        settings = self._settings
        at, most_mb = shlex.quote(settings.collect), settings.max_collected_mb
        look = f"""test -e {at} || exit 3
        test "$(du -sk {at} | cut -f1)" -lt {most_mb * 1024 - 1024} || exit 4
        test "$(find {at} | head -n {_MAX_FILES} | wc -l)" -lt {_MAX_FILES} || exit 5
        test -z "$(find {at} -mindepth {_MAX_DEPTH} | head -c 1)" || exit 6"""
        found = await sandbox.exec(["sh", "-c", look], limits=ExecLimits(settings.test_timeout_s))
        return {
            3: f"it left no {settings.collect}",
            4: f"it left more than {most_mb} MiB (max_collected_mb)",
            5: f"it left more than {_MAX_FILES} files",
            6: f"it left folders more than {_MAX_DEPTH} deep",
        }.get(found.rc if found.rc is not None else 0, "")

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Run the test over what the program left."""
        settings, row, data = self._settings, task.payload, outcome.data
        ended = f"the program ended by {data['cause']}, rc {data['rc']}"
        if data.get("lost"):
            return Reward(0.0, (str(data["lost"]), ended), {"program_failed": float(data["rc"] != 0)})
        if why_not := await self._put(sandbox, row, b64decode(data["files"])):
            return Reward(0.0, (why_not, ended), {"program_failed": float(data["rc"] != 0)})
        result = await sandbox.exec(self._test(row), limits=ExecLimits(settings.test_timeout_s))
        passed = result.rc == 0
        said = (result.stdout + result.stderr).strip()[-300:]
        failed = f"the test failed ({result.cause}, rc {result.rc}){': ' * bool(said)}{said}"
        reason = "the test passed" if passed else failed
        last = str(data["stderr"] or data["stdout"]).strip()[-300:]
        if data["rc"] != 0 and last:  # a program that fell over is mostly a mistake of whoever wrote it
            ended += f", saying {last!r}"
        return Reward(float(passed), (reason, ended), {"program_failed": float(data["rc"] != 0)})

    async def _put(self, sandbox: Sandbox, row: Row, left: bytes) -> str:
        """Put what the program left there, and the hidden files; return why what it left forbids that."""
        hidden = row.get("test_files", {})
        try:
            await sandbox.upload(".", left)
            if hidden:
                await make_way(sandbox, hidden)
                await sandbox.upload(".", archive(hidden))
        except SandboxError as error:
            if (await sandbox.exec(["true"])).rc != 0:  # which raises where the sandbox is lost
                raise
            return f"what it left cannot be put into a sandbox: {error.rule}"
        return ""

    def _test(self, row: Row) -> list[str]:
        own = row.get("test")
        return ["sh", "-c", own] if own and isinstance(own, str) else list(own or self._settings.test)

    def _ending(self, result: ExecResult) -> dict[str, Any]:
        most = self._settings.shown_chars
        shown = {
            "stdout": result.stdout[-most:] if most else "",
            "stderr": result.stderr[-most:] if most else "",
        }
        return {"rc": result.rc, "cause": result.cause, **shown}
