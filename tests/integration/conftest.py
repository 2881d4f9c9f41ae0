"""Real runs: the command line, its worker processes, their sandboxes, and the tiny model.

Every test works in its own folder through `Bench`. `Bench.check` is how each run ends, whatever happened to
it: the journal replays byte for byte, every rollout that was started is accounted for, and nothing is left
outside the run directory.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.models.fetch import fetch
from headway.runtime.replay import verify
from headway.telemetry.journal import read_journal
from headway.telemetry.metrics import RunMetrics

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300  # for anything that takes seconds on a quiet machine

CONFIG = """
[run]
dir = "{runs}"

[model]
path = "tiny"

[environment]
name = "arithmetic"
args = {{ levels = [1] }}

[sandbox]
directory = "{sandboxes}"
max_live = 4

[generator]
threads = 1
max_running = 16
max_context_tokens = 32
max_answer_tokens = 6

[queue]
group_size = 4
batch_size = 8
bound = 1
drop_zero_advantage = false

[trainer]
threads = 1
full = true
learning_rate = 1e-5

[eval]
num_tasks = 0

[stop]
steps = 3

[checkpoint]
every_steps = 1
"""

# A plain-file environment; tests put their faults into the three places.
ENVIRONMENT = '''
import asyncio
import os
import time
from dataclasses import dataclass

from headway.core.protocols import Outcome
from headway.core.records import Message, Reward, Task


@dataclass(frozen=True)
class Settings:
    pass


class Mine:
    """An environment that a test wrote."""

    name = "mine"
    settings_type = Settings
    resume = "restart"
    needs_sandbox = {needs_sandbox}
    stop_strings = ()
    system_prompt = None

    def __init__(self, settings, seed):
        pass

    def num_tasks(self, split):
        return None

    def task(self, split, index, level):
        return Task(f"{{split}}/{{index}}", split, 1, {{"index": index}})

    def prompt(self, task):
        return [Message("user", f"{{task.payload['index'] % 10}}+1=")]

    async def rollout(self, task, chat, sandbox):
        index = task.payload["index"]
        {rollout}
        reply = await chat.say(self.prompt(task))
        return Outcome({{"answer": reply.text}})

    async def score(self, task, outcome, sandbox):
        index, answer = task.payload["index"], outcome.data["answer"]
        {score}
'''
LAST_DIGIT = 'return Reward(float(sum(map(ord, answer)) % 2), ("parity of the answer",))'


def pytest_collection_modifyitems(items):
    """These wait for whole runs on machines that may be busy with others."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(3 * PATIENCE_S))


@pytest.fixture(scope="session")
def tiny_model():
    """The tiny model's directory; made once, then cached."""
    return fetch("tiny")


@pytest.fixture
def bench(tmp_path, tiny_model):
    made = Bench(tmp_path)
    yield made
    made.close()


@dataclass
class Ended:
    """A command that is over."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return f"exit code {self.code}\n{self.out}\n{self.err}"

    def refused(self):
        """Bad input: exit code 2, one line a problem, no traceback. Returns the lines."""
        assert self.code == 2, self.text
        assert "Traceback" not in self.out + self.err, self.text
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert lines, self.text
        return "\n".join(lines)


class Command:
    """`python -m headway ...` while it runs."""

    def __init__(self, folder, arguments, prefix=()):
        self._out = folder / f"out{time.monotonic_ns()}"
        self._err = self._out.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "headway", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                start_new_session=True,  # what a test does to it must not reach pytest
            )

    @property
    def pid(self):
        return self.process.pid

    @property
    def out(self):
        return self._out.read_text(errors="replace")

    def until(self, pattern):
        """Wait for a line of output."""
        wait_for(
            lambda: re.search(pattern, self.out, re.MULTILINE) or self.process.poll() is not None,
            lambda: f"{pattern!r} in:\n{self.out}\n{self._err.read_text()}",
        )
        assert re.search(pattern, self.out, re.MULTILINE), self.ended().text
        return self

    def until_step(self, step):
        return self.until(rf"^ *{step}[/ ]")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def ended(self, within_s=PATIENCE_S):
        code = self.process.wait(within_s)
        return Ended(code, self.out, self._err.read_text(errors="replace"))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def wait_a_while(self, seconds):
        """Let it run, at most until it ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def workers(self):
        """Process ids of its workers."""
        return [
            pid
            for pid, arguments in processes()
            if "headway.runtime.worker" in arguments and arguments[-1] == str(self.pid)
        ]


SHARED_MEMORY = Path("/dev/shm")


class Bench:
    """One test's folder: configs, runs, and what has to hold of them."""

    def __init__(self, folder):
        self.folder = folder
        self.runs = folder / "runs"
        self.sandboxes = folder / "sandboxes"
        self.commands = []
        self.config = folder / "test.toml"
        self.config.write_text(CONFIG.format(runs=self.runs, sandboxes=self.sandboxes))
        self.run_dir = self.runs / "test"
        self.before = set(
            SHARED_MEMORY.glob("headway-weights-*")
        )  # of killed runs, whose process ids come again

    def environment(self, rollout="", score=LAST_DIGIT, needs_sandbox=False):
        """Write a plain-file environment and return the override that chooses it."""
        file = self.folder / "mine.py"
        rollout = rollout.replace("\n", "\n        ")
        score = score.replace("\n", "\n        ")
        file.write_text(ENVIRONMENT.format(rollout=rollout, score=score, needs_sandbox=needs_sandbox))
        return [f"environment.name={file}", "environment.args="]

    def start(self, *arguments, prefix=()):
        command = Command(self.folder, arguments, prefix)
        self.commands.append(command)
        return command

    def headway(self, *arguments):
        return self.start(*arguments).ended()

    def train(self, *overrides):
        return self.headway("train", self.config, *overrides)

    def worker(self, command, role):
        """Process id of the worker that writes logs/<role>.log."""
        for pid in command.workers():
            if os.readlink(f"/proc/{pid}/fd/1").endswith(f"/logs/{role}.log"):
                return pid
        raise AssertionError(f"no worker {role} of {command.pid}")

    def kill_one(self, command, who):
        """Kill the driver or one worker of a command, if it is there."""
        if who == "driver":
            command.kill()
            wait_for(lambda: not command.workers(), lambda: f"the end of {command.workers()}")
            return
        with contextlib.suppress(AssertionError, OSError):  # it has not begun, or is gone already
            os.kill(self.worker(command, who), signal.SIGKILL)

    def leftovers(self):
        """Processes, sandboxes and shared memory that a run of this test has left behind."""
        left = [f"worker {pid}" for command in self.commands for pid in command.workers()]
        left += [
            f"process {pid} {words}" for pid, words in processes() if str(self.sandboxes) in " ".join(words)
        ]
        left += [str(path) for path in self.sandboxes.glob("*")]
        left += [
            str(path)
            for command in self.commands
            for path in SHARED_MEMORY.glob(f"headway-weights-*-{command.pid}-*")
            if path not in self.before
        ]
        return left

    def check(self, run_dir=None):
        """Replay and conserve; nothing is left. Returns the report."""
        run_dir = run_dir or self.run_dir
        result = verify(run_dir)
        assert result.ok, result.text
        summary = RunMetrics.of(read_journal(run_dir)).summary()
        book = {key: value for key, value in summary.items() if key.startswith("conservation.")}
        assert summary["conservation.ok"], book
        assert self.leftovers() == []
        return summary

    def entries(self, kind, run_dir=None):
        """Events, commands and notes of one kind, in order, as plain values."""
        found = []
        for line in (run_dir or self.run_dir).joinpath("journal.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "event" in record:
                parts = [record["event"], *record["commands"], *record["notes"]]
                found += [part for part in parts if part["kind"] == kind]
        return found

    def events(self, run_dir=None):
        """All events in order, as plain values."""
        for line in (run_dir or self.run_dir).joinpath("journal.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "event" in record:
                yield record["event"]

    def trained(self):
        """The rollouts of each step in the surviving weights: {step: [rollout, ...]}."""
        steps, asked = {}, {}
        for line in self.run_dir.joinpath("journal.jsonl").read_text().splitlines():
            record = json.loads(line)
            event = record.get("event", {})
            if event.get("kind") in ("RunResumed", "RolledBack"):
                steps = {step: rows for step, rows in steps.items() if step <= event["step"]}
            elif event.get("kind") == "StepEnded":
                steps[event["step"]] = asked[event["step"]]
            for command in record.get("commands", []):
                if command["kind"] == "Train":
                    asked[command["step"]] = [row[0] for row in command["rows"]]
        return steps

    def close(self):
        for command in self.commands:
            if command.process.poll() is None:
                command.kill()


def wait_for(condition, what, within_s=PATIENCE_S):
    """Poll until a condition holds."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"waited {within_s} s for {what() if callable(what) else what}"
        time.sleep(0.05)


def processes():
    """Every process of this machine: (pid, arguments)."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = folder.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                arguments = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if state not in "ZX":
                yield int(folder.name), [word for word in arguments if word]
