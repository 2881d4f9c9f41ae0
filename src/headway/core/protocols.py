"""The contracts between the rooms. `headway.runtime` is the only place that builds concrete parts."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from headway.core.records import FinishReason, Message, Reward, Stream, Task, ToolSpec, VersionSpan

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager

    from headway.core.commands import Row

# --- engine ---------------------------------------------------------------------------------------

MAIN_POLICY = "main"  # an engine's own weights; adapters have other names


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled. Temperature 0 is greedy."""

    max_tokens: int  # >= 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # least probability, as a share of the likeliest token's; 0 is off
    stop_ids: tuple[int, ...] = ()  # ends the answer; the id itself is part of it
    stop_strings: tuple[str, ...] = ()  # ends the answer after the token that completes one
    seed: int = 0  # with the position in the answer it fixes each draw, whatever else is in the batch


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Token ids in."""

    request_id: str  # unique within the run
    session: str  # requests of one session share KV: the rollout
    group: str  # requests of one group share their prompt
    policy: str  # MAIN_POLICY or a loaded adapter's name; without adapters any name is the main policy's
    prompt_ids: array[int]  # the whole context, [p]
    sampling: Sampling
    num_answer_tokens: int = (
        0  # of the prompt's end that the answer begins with: stop strings may span the seam
    )
    priority: int = 0  # lower runs first
    streams: tuple[str, ...] = ()  # wanted: ROUTED_EXPERTS, KEPT_IDS, MODEL_LOGPROBS, PROMPT_LOGPROBS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Token ids out. The last chunk of a request, and only it, has `finish`; it may carry tokens too.

    Streams of the sampled tokens come with each chunk, of its own tokens; those of the prompt or the whole
    context come with the terminal chunk.
    """

    token_ids: array[int]
    logprobs: array[float]
    spans: tuple[VersionSpan, ...]
    finish: FinishReason | None = None
    message: str = ""  # why, for lost and rejected
    replica: str = ""
    num_resident_tokens: int = 0
    waiting_s: float = 0.0  # totals of the request, on the terminal chunk
    prefill_s: float = 0.0
    decode_s: float = 0.0
    streams: Mapping[str, Stream] = field(default_factory=dict[str, Stream])


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine's answers mean."""

    max_running: int
    max_context_tokens: int
    logprobs: Literal["model", "sampling"]  # T=1 and untruncated, or of the distribution drawn from
    top_p: bool
    top_k: bool
    lora: bool
    max_adapters: int = 0  # that may be loaded beside the main policy; 0 for an engine without
    max_adapter_rank: int = 0
    min_p: bool = False
    kept_ids: bool = False  # whether KEPT_IDS can be had, without which truncated samples cannot be trained


@dataclass(frozen=True, slots=True)
class EngineStats:
    """An engine's load at one moment."""

    num_running: int
    num_waiting: int
    kv_used_fraction: float
    tokens_per_s: float
    num_preemptions: int = 0  # running requests that gave way, since the start
    num_adapters: int = 0
    adapter_bytes: int = 0  # memory that they take


class Engine(Protocol):
    """A generator replica as its callers see it."""

    def capabilities(self) -> EngineCapabilities:
        """Return what this engine can do."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield chunks and exactly one terminal chunk, whatever happens."""
        ...

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        """End these requests, or all; each yields its terminal chunk with the tokens it has."""
        ...

    async def end_session(self, session: str) -> None:
        """Free what is kept for a session between its requests."""
        ...

    async def apply(self, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Take up weights between two decode steps; return seconds without decoding.

        Raises EngineError while adapters are loaded: they belong to the weights that are there.
        """
        ...

    async def load_adapter(self, policy: str, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Answer for a LoRA adapter under this name; return seconds without decoding.

        An adapter that is loaded already is updated in place, between two decode steps, while its requests
        run on; `kv` says what becomes of their KV, as in `apply`. No other policy's requests are touched.

        Args:
            policy: its name, not MAIN_POLICY.
            lineage: of its version, for the spans of its tokens.
            number: of its version.
            manifest: a published adapter's manifest, or a directory that PEFT saved.
            kv: keep or recompute.

        Raises UserError for an adapter that does not fit or is not computed, EngineError when the engine
        cannot have adapters (now). What was there then stays.
        """
        ...

    async def drop_adapter(self, policy: str) -> None:
        """Free an adapter. Its requests end as aborted, with the tokens they have and a message.

        Raises EngineError when there is no adapter of this name.
        """
        ...

    def stats(self) -> EngineStats:
        """Return the load now."""
        ...

    async def close(self) -> None:
        """End every request as aborted and free the memory."""
        ...


# --- sandbox --------------------------------------------------------------------------------------

Cause = Literal[
    "exit", "wall", "cpu", "oom", "pids", "disk", "inodes", "output", "killed", "infra"
]  # only infra is no fault of the program


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command and everything that it started used; a provider that cannot tell leaves 0."""

    cpu_s: float = 0.0
    max_memory_bytes: int = 0  # most at once; of all processes where a cgroup counts, else of the largest
    num_processes: int = 0  # processes and threads started, the first included


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended."""

    rc: int | None  # exit code; None when a signal or a limit ended it
    signal: int | None
    stdout: str
    stderr: str
    truncated: bool  # output was cut at its limit
    cause: Cause
    wall_s: float  # without the time that it was paused
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Polled:
    """A long-lived process at one moment."""

    running: bool
    rc: int | None  # exit code; None while it runs, and when a signal or a limit ended it
    signal: int | None
    stdout: str  # since the last poll
    stderr: str
    truncated: bool  # output since the last poll was cut at its limit
    cause: Cause | None  # None while it runs


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox holds now, and has used; 0 for what its provider cannot tell."""

    cpu_s: float = 0.0  # of all processes so far
    memory_bytes: int = 0  # of all processes, now
    disk_bytes: int = 0  # in the work folder
    num_files: int = 0  # likewise, folders included
    num_processes: int = 0  # now, the provider's own left out


@dataclass(frozen=True, slots=True)
class ExecLimits:
    """Limits of one command. Start and queue time never count.

    Raises ValueError unless wall_s is above 0 and output_bytes is not below it.
    """

    wall_s: float = 5.0
    output_bytes: int = 65536

    def __post_init__(self) -> None:
        """Refuse what would be no limit, NaN too."""
        if not (self.wall_s > 0 and self.output_bytes >= 0):
            raise ValueError(f"limits must be above 0 seconds and at least 0 bytes: {self}")


ConnectionHandler: TypeAlias = "Callable[[StreamReader, StreamWriter], Awaitable[None]]"


class Sandbox(Protocol):
    """One contained machine. It is created lazily, at the first exec or file call."""

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: ExecLimits | None = None,
        cwd: str = "",
    ) -> ExecResult:
        """Run a command. A command without an exit code is never reported as exit code 0.

        `cwd` is where it runs, relative to the work folder; a folder that it may not enter is exit code 126.
        What it leaves behind ends with it; processes of `spawn` do not. Raises SandboxError when the
        infrastructure failed.
        """
        ...

    async def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        output_bytes: int = 65536,
    ) -> None:
        """Start a long-lived process under a name that no running one has.

        It lasts until it ends by itself, `kill`, or the sandbox's end; it has no wall limit.
        Raises SandboxError when the name is taken, and when it could not start.
        """
        ...

    async def poll(self, name: str) -> Polled:
        """Say how a long-lived process is, and what it wrote since the last poll.

        At most `output_bytes` of each stream are kept between two polls. Raises SandboxError for a name
        that was never spawned.
        """
        ...

    async def kill(self, name: str) -> None:
        """End a long-lived process and what it started; idempotent. `poll` still tells its last output."""
        ...

    def serve(
        self, port: int, handler: ConnectionHandler, *, max_connections: int = 64
    ) -> AbstractAsyncContextManager[int]:
        """Let programs in the sandbox connect to 127.0.0.1 at a port; `handler` serves each connection here.

        It lasts for the length of an `async with` block, whose value is the port. Programs that begin in the
        block reach it, and no one else does: no other sandbox, no other program of the host. Each connection
        is closed when its handler returns. Handlers that run at the block's end, or when the sandbox ends,
        are cancelled.

        Args:
            port: from 1024 on, or 0 for one that is free.
            handler: a coroutine function. A ConnectionError or IncompleteReadError that it raises is the
                client's doing; another exception breaks its connection off, and is raised at the block's end.
            max_connections: served at once; further ones wait in line.

        Raises SandboxError when nothing can listen there. It cannot be repeated from a record, so an
        environment that uses it declares `restart`.
        """
        ...

    async def pause(self) -> None:
        """Let no process make progress until `resume`; idempotent. The time counts against no limit."""
        ...

    async def resume(self) -> None:
        """Go on; idempotent. Raises SandboxError when the sandbox was lost in between."""
        ...

    async def stats(self) -> SandboxStats:
        """Say what the sandbox holds and has used."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the sandbox's work folder; a path that leads out raises SandboxError."""
        ...

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a file below the work folder; symlinks that lead out raise SandboxError."""
        ...

    async def upload(self, path: str, archive: bytes) -> None:
        """Put what a tar archive holds below a folder of the work folder, which is made; "." is all of it.

        What is there under the same names is replaced. Raises SandboxError for an entry that would leave the
        folder, or what exceeds the sandbox's limits; entries before it may be there then.
        """
        ...

    async def download(self, path: str, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Return a file or folder below the work folder as a tar archive; "." is all of it.

        Links are never followed. Raises SandboxError when there is none, or beyond a limit.
        """
        ...

    async def terminate(self) -> None:
        """End every process and remove every file; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One thing that a provider promises on this machine."""

    name: str  # network, memory, pids, files, ...
    level: Literal["enforced", "best-effort", "absent"]
    remedy: str = ""  # what would make it enforced


class SandboxProvider(Protocol):
    """Makes sandboxes."""

    snapshots: bool  # whether snapshots and forks work; without them a state is rebuilt by its calls
    spawns: bool  # whether `spawn`, `poll` and `kill` work; without them they raise SandboxError
    pauses: bool  # whether `pause` and `resume` work; likewise

    async def preflight(self) -> list[Guarantee]:
        """Say what holds here; raise SandboxUnavailableError with the remedy when nothing can run."""
        ...

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> Sandbox:
        """Create a sandbox; cancelling the call leaves nothing behind.

        Label `image` names the container image that it is made of, in place of the configured one; a provider
        without containers raises SandboxError for it.
        """
        ...

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox of this provider still has what was done in it; cheap."""
        ...

    async def snapshot(self, sandbox_id: str, store: Path, labels: Mapping[str, str]) -> str:
        """Put a sandbox's state into a store, a folder of the host; return the snapshot's digest.

        The digest tells state and labels, so an equal snapshot has an equal one. Waits for the command that
        runs. Raises SandboxError when it cannot be stored whole; no snapshot is left then.
        """
        ...

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], store: Path, digest: str) -> Sandbox:
        """Create a sandbox in the state of a snapshot, which stays.

        Raises SandboxError when there is no such snapshot, or it is damaged; nothing is left behind then.
        """
        ...

    async def fork(self, sandbox_id: str, new_id: str, labels: Mapping[str, str]) -> Sandbox:
        """Create a sandbox in the state of a live one, which goes on; they share nothing afterwards.

        Waits for the command that runs. Raises SandboxError when there is no such sandbox.
        """
        ...

    async def reset(self, sandbox_id: str, store: Path, digest: str) -> None:
        """Bring a live sandbox to the state of a snapshot; it stays the same `Sandbox`.

        Raises SandboxError when there is no such snapshot; the sandbox is as it was then.
        """
        ...

    async def discard(self, store: Path, digest: str) -> None:
        """Remove a snapshot, and what no other one of the store needs; idempotent."""
        ...

    async def list(self, labels: Mapping[str, str]) -> list[str]:
        """Return ids of live sandboxes whose labels include these."""
        ...

    async def end(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        """End one sandbox by the id and labels of its creation, this process's or a dead one's; idempotent.

        Returns whether anything of it was there.
        """
        ...

    async def reap(self, run_id: str) -> int:
        """End every sandbox of a run, this process's or a dead one's; return how many."""
        ...


# --- environment ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy answered, as the environment sees it."""

    text: str  # decoded, the end-of-turn token left out
    finish: FinishReason
    num_tokens: int
    num_room_tokens: int  # left in the context
    message: Message  # the same, its reasoning and its calls of tools taken apart
    malformed: str = ""  # why what looks like a call of a tool is none; "" when nothing does


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer to a whole history, with the tokens that are trained."""

    prompt_ids: array[int]  # everything before the answer: the branch that it continues included, [p]
    token_ids: array[int]  # as they were sampled, [n]
    logprobs: array[float]  # of the policy that sampled them, [n], nats
    message: Message  # as clients are told; what follows a stop string of the request is left out
    finish: FinishReason
    malformed: str = ""  # why what looks like a call of a tool is none; "" when nothing does
    turn: int = 0  # index among the rollout's answers
    parent: int = -1  # of the answer that it continues, -1 when it continues none

    @property
    def num_tokens(self) -> int:
        """Tokens that were sampled."""
        return len(self.token_ids)


class Completions(Protocol):
    """One rollout as programs speak to it: any number of histories, several at a time.

    Each history continues the answer that it extends with exactly the ids that were sampled; one that
    rewrites what was said is a new branch of the rollout, from the last answer that still holds. Every answer
    is trained once, and the rollout counts once in its group however many branches it has.
    """

    @property
    def max_context_tokens(self) -> int:
        """Tokens of a history and its answer together, at most."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Let the policy answer a whole history.

        Args:
            messages: from the first one on; answers are recognised by what `Completion.message` said.
            tools: what the policy may call; other tools than before begin a new root.
            max_tokens: caps the answer below the configured limit.
            stop: text that ends the answer, beside what the environment says.

        Raises ContextFullError when no room for an answer is left, EnvironmentFault when the rollout has
        ended, ModelError when the chat template refuses the messages, EngineError when the engine lost the
        request.
        """
        ...

    async def complete_ids(
        self, prompt_ids: array[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Completion:
        """Let the policy go on from token ids, which continue the longest branch that they begin with.

        Raises like `complete`.
        """
        ...

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a program reaches one rollout, and nothing else."""

    base_url: str  # for OPENAI_BASE_URL
    key: str  # for OPENAI_API_KEY: a secret of this rollout
    port: int  # of the loopback interface; 0 where it listens at a path
    handler: (
        ConnectionHandler  # serves a connection that somebody else accepted; it returns when that is over
    )


class EndpointServer(Protocol):
    """Serves rollouts to programs that speak HTTP."""

    async def open(self, completions: Completions, name: str) -> Endpoint:
        """Serve a rollout from now on; `name` is for people."""
        ...

    async def close_session(self, endpoint: Endpoint, why: str) -> None:
        """Serve it no longer: what is asked of it, now or later, is answered by an error that says why."""
        ...


class Chat(Completions, Protocol):
    """A conversation with the policy. It never shows weight updates, pauses or resumes."""

    def endpoint(self) -> AbstractAsyncContextManager[Endpoint]:
        """Let programs speak to this rollout over the OpenAI API, as long as the context is open.

        Raises EnvironmentFault where rollouts are not served, or the environment does not restart.
        """
        ...

    @property
    def answering_s(self) -> float:
        """Seconds so far in which at least one answer was awaited, parked ones included."""
        ...

    @property
    def sampled(self) -> Sequence[array[int]]:
        """Token ids of each answer so far, as they were sampled, in the order of `Completion.turn`."""
        ...

    async def say(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> Reply:
        """Append messages and let the policy answer.

        Args:
            messages: new ones only.
            max_tokens: caps the answer below the configured limit.
            tools: what the policy may call; the first say tells it, and later ones repeat it.

        Raises EnvironmentFault when the messages do not fit the context, or the tools differ from those of
        the first say; EngineError when the engine lost the request.
        """
        ...

    def report(self, value: float, reason: str = "") -> None:
        """Say how the rollout goes; below 0 asks for its end (`[pruning]` decides)."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rollout left for its verifier: JSON values only, for scoring may happen elsewhere and later."""

    data: dict[str, Any]
    transcript: list[dict[str, Any]] = field(
        default_factory=list[dict[str, Any]]
    )  # as `score` gets it: all messages in order, role and content, and finish and num_tokens of answers


class Environment(Protocol):
    """Offers tasks, runs one rollout as a coroutine, scores what it left."""

    name: str
    resume: Literal["replay", "snapshot", "restart"]
    needs_sandbox: bool
    stop_strings: tuple[str, ...]  # text that ends an answer
    system_prompt: str | None  # None for the chat template's own

    def num_tasks(self, split: str) -> int | None:
        """Tasks of a split, None when there is no end of them."""
        ...

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; the same arguments give the same task."""
        ...

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the first messages of a task, so that their length can be checked before a run."""
        ...

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Run one rollout."""
        ...

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Score an outcome. `sandbox` is a fresh one, created only when it is used."""
        ...


@runtime_checkable
class HasImages(Protocol):
    """An environment whose tasks have container images of their own."""

    def image(self, task: Task) -> str:
        """Return the image that a task's sandboxes are made of; "" for the one that is configured."""
        ...


# --- trainer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did."""

    num_tokens: int  # through the model
    num_trained_tokens: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class OptimSettings:
    """Settings of one optimizer step in place of the trainer's own; None keeps those."""

    learning_rate: float | None = None  # no warm-up or decay acts on it
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None


class PartSums(Protocol):
    """What a forward and backward pass over a part of a batch leaves; parts add up."""

    loss: float  # weighted by the denominators
    num_tokens: int  # positions through the model, shared prefixes once
    num_trained_tokens: int

    @property
    def logprobs(self) -> Mapping[int, Any]:
        """Log-probs of the trained tokens of each sample that has any, by its place among all, nats, [k]."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return means over the trained tokens of the part."""
        ...


class Trainer(Protocol):
    """The trainer as its worker process sees it. Rows are fetched by reference.

    `step` is one whole step. Its pieces are operations of their own, and additive: any number of callers add
    gradients with `forward_backward`, in any order and in parts of any size, and one `optim_step` applies
    their sum and forgets it. Rows that are refused leave what others added as it was.
    """

    def step(self, rows: Sequence[Row], lr_scale: float = 1.0, *, num_gathered: int = 0) -> StepResult:
        """Take one optimizer step on these rows; `lr_scale` multiplies the learning rate.

        The first `num_gathered` of them were handed to `gather` since the last step, in this order. Without
        any, a gradient that others added is forgotten.
        """
        ...

    def gather(self, rows: Sequence[Row]) -> int:
        """Add the gradient of whole groups to the next step, whose batch is not complete yet.

        Returns the tokens that went through the model. The first call after a step forgets what others
        added. Raises UserError where the algorithm needs the whole batch first.
        """
        ...

    def forward(
        self, rows: Sequence[Row], policy: Literal["policy", "reference"] = "policy"
    ) -> Sequence[Sequence[Any]]:
        """Return log-probs of the trained tokens, nats, for each row and each of its samples, an array [k].

        `reference` is the checkpoint that the run began from; HeadwayError where it is not kept.
        """
        ...

    def batch_wide(self, rows: Sequence[Row]) -> Any:
        """Return what only a whole batch tells, its denominators above all, to give to each of its parts."""
        ...

    def forward_backward(self, rows: Sequence[Row], wide: Any) -> PartSums:
        """Add the gradient of rows to what was added before; `wide` is of the batch that they are a part of.

        All or nothing: when it raises, the gradient is what it was before the call.
        """
        ...

    def zero_grad(self) -> None:
        """Forget the gradient that was added so far, whoever did."""
        ...

    def optim_step(self, settings: OptimSettings | None = None, *, lr_scale: float = 1.0) -> dict[str, float]:
        """Clip the gradient, apply it, and forget it: one more step is applied.

        Returns `grad_norm` before clipping, `learning_rate`, and `nonfinite`: 1 when the update was skipped.
        Raises HeadwayError when nothing was added since the last step.
        """
        ...

    def publish(self, lineage: int, number: int) -> tuple[str, int]:
        """Write the weights for replicas, atomically; return (manifest, bytes).

        Raises DiskFullError when there is no room for them.
        """
        ...

    def publish_to(self, weights_dir: Path) -> None:
        """Publish versions there from now on."""
        ...

    def capture(self, step: int, *, lineage: int = 0) -> Callable[[], str]:
        """Copy what a checkpoint holds; return what writes it, atomically and in any thread, to its path."""
        ...

    def save(self, step: int, *, lineage: int = 0) -> str:
        """Write a checkpoint, atomically, and drop the oldest; return its path."""
        ...

    def retain(self, step: int, also: Collection[int] = ()) -> None:
        """Drop all checkpoints but the newest few up to `step`, milestones, and those of the steps `also`."""
        ...

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints of steps that are lost because the run goes on from `step`."""
        ...

    def load(self, path: str) -> None:
        """Go on exactly from a checkpoint."""
        ...

    def set_threads(self, num_threads: int) -> None:
        """Compute with this many CPU threads from the next micro-batch on; callable from any thread."""
        ...

    def close(self) -> None:
        """End the processes that compute with it, if there are any; nothing may be asked of it afterwards."""
        ...
