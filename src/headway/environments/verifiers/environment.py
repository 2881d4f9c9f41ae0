"""The environments `verifiers:NAME`: a package made for verifiers plays the rollout and scores it.

The package runs in a worker process with a virtual environment of its own (worker/, process.py), and speaks
to the policy over the endpoint of its rollout, like any program: what is trained is what the gateway recorded
there. The worker tells which answers the package took; where these are not those that were recorded, the
rollout fails. It is scored right after it has ended, in the worker, where its state is; a reward function
that raised is a failed score, tried once more with the state that the worker kept.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.core.errors import EnvironmentFault, EnvironmentSetupError
from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import TOKENS, Message, Reward, Task
from headway.environments.tasks import check_position, task_id
from headway.environments.verifiers.lock import differing, read_lock
from headway.environments.verifiers.places import PREFIX, find, installed, normal
from headway.environments.verifiers.process import PackageProcess
from headway.environments.verifiers.settings import VerifiersSettings
from headway.rewards.faults import RewardRaisedFault

if TYPE_CHECKING:
    from headway.environments.verifiers.places import Installed

_ROW_S = 120.0  # to answer what a task is
_EVAL_SHARE = 4


class Verifiers:
    """A package made for the library verifiers, unmodified, in a virtual environment of its own."""

    package = ""  # set by `named`
    name = "verifiers"
    settings_type = VerifiersSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: VerifiersSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._installed = found = find(self.package)
        _check_lock(found, settings.lock)
        load = {
            "module": settings.module or self.package.replace("-", "_"),
            "package": self.package,
            "args": settings.args,
            "harness": settings.harness,
            "max_tasks": settings.max_tasks,
        }
        self._processes = [
            PackageProcess(self.name, found.executable, load, settings.load_timeout_s, settings.pass_env)
            for _ in range(settings.processes)
        ]
        self._places: dict[str, list[tuple[str, int, str]]] | None = None
        self._messages: dict[tuple[str, int], list[dict[str, str]]] = {}

    def close(self) -> None:
        """End the workers; what is asked then starts them anew."""
        for process in self._processes:
            process.close()

    def num_tasks(self, split: str) -> int | None:
        """Return how many tasks there are; loads the package."""
        return len(self._splits().get(split, ()))

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; there are no levels."""
        if level:
            raise EnvironmentSetupError(
                "a package of verifiers has no levels",
                value=level,
                remedy="Leave [curriculum] out, or give the package arguments (environment.args.args)",
            )
        check_position(split, index, self.num_tasks(split))
        source, at, key = self._splits()[split][index]
        if (source, at) not in self._messages:
            row = self._processes[0].ask({"do": "row", "split": source, "index": at}, _ROW_S)
            self._messages[source, at] = row["messages"]
        payload = {"split": source, "index": at, "key": key, "messages": self._messages[source, at]}
        return Task(task_id(split, index, level), split, 0, payload)

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the task's first messages."""
        return [Message(message["role"], message["content"]) for message in task.payload["messages"]]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Let the package run its rollout against this one's endpoint."""
        process = min(self._processes, key=lambda each: each.num_running)
        payload = task.payload
        request = {name: payload[name] for name in ("split", "index", "key")}
        async with chat.endpoint() as endpoint:
            if not endpoint.port:
                rule = "packages of verifiers need an endpoint at a port"
                raise EnvironmentFault(rule, remedy='Set gateway.listen = "loopback"', key="gateway.listen")
            speaking = {"base_url": endpoint.base_url, "api_key": endpoint.key, "model": "policy"}
            found = await process.asked({"do": "rollout", **request, **speaking})
            life = process.life
        self._must_match(found, chat.sampled)
        kept = {"at": self._processes.index(process), "life": life, "kept": found["kept"]}
        data = {
            name: found[name] for name in ("reward", "metrics", "failures", "left_out", "stop", "truncated")
        }
        return Outcome({**data, "again": kept})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Return what the package's own rubric said."""
        scored: dict[str, Any] = outcome.data
        if scored["failures"]:
            again = scored["again"]
            at: int = again["at"]
            process = self._processes[at] if at < len(self._processes) else None
            if process is not None and again["kept"] and process.life == again["life"]:
                scored = await process.asked({"do": "score", "kept": again["kept"]})
        if scored["failures"]:
            raise RewardRaisedFault(f"{self.name}: {'; '.join(scored['failures'])}")
        metrics: dict[str, float] = scored["metrics"]
        left_out: dict[str, str] = scored["left_out"]
        said = ", ".join(f"{name} {value:g}" for name, value in list(metrics.items())[:4])
        reasons = [f"the package's rubric: {said or 'no metrics'}"]
        reasons += [f"the metric {name} is left out: {words}" for name, words in left_out.items()]
        if outcome.data["stop"]:
            reasons.append(f"the rollout ended by {outcome.data['stop']}")
        return Reward(scored["reward"], tuple(reasons), metrics)

    def _splits(self) -> dict[str, list[tuple[str, int, str]]]:
        """Return where the tasks of each split are in the package, and their keys."""
        if self._places is None:
            loaded = self._processes[0].loaded()
            train, held_out = _numbered(loaded["train"]), _numbered(loaded["eval"])
            most = self._settings.num_eval
            source = "eval"
            if not held_out:
                source = "train"
                order = sorted(train, key=lambda each: hashlib.sha256(each[1].encode()).digest())
                held_out = order[: min(most, len(order) // _EVAL_SHARE)]
            held_out = held_out[:most]
            taken = {key for _, key in held_out}
            train = [(at, key) for at, key in train if key not in taken]
            random.Random(self._seed).shuffle(train)
            self._places = {
                "train": [("train", at, key) for at, key in train],
                "eval": [(source, at, key) for at, key in held_out],
            }
        return self._places

    def _must_match(self, found: dict[str, Any], sampled: Sequence[array[int]]) -> None:
        """Raise EnvironmentFault unless the answers that the package took are those that were recorded."""
        recorded = Counter(_digest(ids) for ids in sampled)
        if not recorded:
            raise EnvironmentFault(f"{self.name} must ask the policy something; its rollout asked nothing")
        turns = found["turns"]
        missing = [at for at, turn in enumerate(turns) if turn is None]
        if missing:
            raise EnvironmentFault(
                f"{self.name} must keep the token ids of each answer; "
                f"those of {len(missing)} of {len(turns)} answers are missing, first of answer {missing[0]}",
                remedy="It must speak to the policy by the client that it is given",
            )
        shown = Counter(turn["digest"] for turn in turns)
        if strange := shown - recorded:
            raise EnvironmentFault(
                f"{self.name} shows {strange.total()} of {len(turns)} answers that the policy did not give"
            )
        unseen = (recorded - shown).total() - bool(found["empty"]) + found.get("dropped", 0)
        if unseen > 0 and self._settings.unseen_answers == "refuse":
            raise EnvironmentFault(
                f"{self.name} shows {len(turns)} answers of {len(sampled)} that the policy gave",
                remedy='environment.args.unseen_answers = "train" trains them all, where that is meant',
                key="environment.args.unseen_answers",
            )


def named(name: str) -> type[Verifiers]:
    """Return the environment of a package; `name` has the prefix. It need not be installed yet."""
    package = normal(name.removeprefix(PREFIX))
    return type(
        "Verifiers",
        (Verifiers,),
        {"package": package, "name": PREFIX + package, "__doc__": Verifiers.__doc__},
    )


def members() -> list[tuple[str, str]]:
    """Return every installed package by its full name, with its version and that of verifiers."""
    return [
        (f"{PREFIX}{one.name}", f"version {one.version}, with verifiers {one.verifiers}; {one.source}")
        for one in installed()
    ]


def _numbered(keys: list[str]) -> list[tuple[int, str]]:
    return list(enumerate(keys))


def _digest(ids: array[int]) -> str:
    return hashlib.sha256(array(TOKENS, ids).tobytes()).hexdigest()


def _check_lock(found: Installed, lock: str) -> None:
    if not lock:
        return
    if lines := differing(read_lock(Path(lock)), found.lock):
        raise EnvironmentSetupError(
            f"the package must be installed as its lock says; {len(lines)} lines differ: "
            f"{', '.join(lines[:4])}",
            value=lock,
            key="environment.args.lock",
            remedy=f"headway env install {found.name} --locked {lock} --force",
        )
