"""The scenes of benchmarks/loop.py: what is compared in each, their prompts, and Headway's config of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

GROUP, BATCH = 8, 32
_CONFIG = """
[model]
path = {model}

[environment]
name = {environment}
args = {{ prompts = {prompts} }}
rollout_timeout_s = 3600

[generator]
max_running = 64
kv_on_update = "keep"
max_context_tokens = {context}
max_answer_tokens = {answer}

[queue]
group_size = {group}
batch_size = {batch}
bound = {bound}
drop_zero_advantage = false

[trainer]
full = {full}
lora_rank = 16
lora_alpha = 32
learning_rate = {rate}

[checkpoint]
every_steps = 0

[eval]
num_tasks = 0

[stop]
steps = {steps}
"""


class Threads(NamedTuple):
    """How TRL's process computes."""

    num: int
    waiting: Literal["sleeping", "spinning"]

    def __str__(self) -> str:
        return f"{self.num} {self.waiting}"


EVERY_WAY = Threads(1, "sleeping"), Threads(2, "sleeping"), Threads(2, "spinning")


@dataclass(frozen=True, slots=True)
class Scene:
    """One comparison of the two loops.

    Attributes:
        name: key of the results.
        model: which model.
        prompt_tokens: of every prompt.
        answer_tokens: of every answer.
        rate: the constant learning rate; all weights of the random models, LoRA of rank 16 in SmolLM2.
        steps: optimizer steps that are measured in each round, a multiple of bound + 1.
        their_rows: sequences in one of TRL's micro-batches; its whole batch where memory allows it.
        their_threads: what TRL is tried with in each round, the best median counts: a number of threads,
            and whether they sleep while they wait (OMP_WAIT_POLICY) or spin, which is faster on idle cores.
        their_steps: TRL's, where as many would take too long; 0 for as many.
        their_lead: TRL's first steps that are left out, 1 or 0.
        bound: Headway's staleness bound.
        fixed_length: whether an answer that ends early is an error.
    """

    name: str
    model: Literal["micro", "tiny", "smollm2"]
    prompt_tokens: int
    answer_tokens: int
    rate: float
    steps: int
    their_rows: int
    their_threads: tuple[Threads, ...] = (Threads(2, "sleeping"),)
    their_steps: int = 0
    their_lead: int = 1
    bound: int = 2
    fixed_length: bool = True

    @property
    def full(self) -> bool:
        """Whether every weight is trained."""
        return self.model != "smollm2"


SCENES = {
    scene.name: scene
    for scene in (
        Scene("micro", "micro", 16, 16, 1e-6, 60, BATCH, EVERY_WAY),
        Scene("tiny", "tiny", 16, 64, 1e-6, 18, BATCH, EVERY_WAY),
        Scene("smollm2.short", "smollm2", 64, 64, 1e-4, 2, 8, their_steps=2, their_lead=0, bound=1),
        Scene("smollm2.long", "smollm2", 512, 64, 1e-4, 2, 4, their_steps=1, their_lead=0, bound=1),
    )
}


LEARNING = replace(SCENES["micro"], name="reward", rate=5e-4, fixed_length=False)
"""What the rewards of both sides are compared on; here the end token may be learned, by both alike."""


def make_prompts(scene: Scene, model: Path, folder: Path, num: int = 512) -> Path:
    """Write a JSON list of random texts, each exactly `prompt_tokens` tokens long, and return its path."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    draw = random.Random(0)
    if scene.model == "smollm2":
        ids = [tokenizer.token_to_id(token) for token in tokenizer.get_vocab() if token[1:].isalpha()]
        texts = [tokenizer.decode([number]) for number in sorted(ids)]
        words = [text for text in texts if text.startswith(" ") and text[1:].isascii() and text[1:].islower()]
    else:
        words = [chr(number) for number in range(ord("a"), ord("z") + 1)]
    prompts: list[str] = []
    while len(prompts) < num:
        text = "".join(draw.choices(words, k=scene.prompt_tokens))
        if len(tokenizer.encode(text, add_special_tokens=False).ids) == scene.prompt_tokens:
            prompts.append(text)
    path = folder / f"{scene.name}.prompts.json"
    path.write_text(json.dumps(prompts))
    return path


def write_config(scene: Scene, model: Path, prompts: Path, folder: Path, steps: int) -> Path:
    """Write Headway's config of a scene and return its path."""
    path = folder / f"{scene.name}.toml"
    path.write_text(
        _CONFIG.format(
            model=json.dumps(str(model)),
            environment=json.dumps(str(Path(__file__).parent / "letters" / "environment.py")),
            prompts=json.dumps(str(prompts)),
            context=scene.prompt_tokens + scene.answer_tokens,
            answer=scene.answer_tokens,
            group=GROUP,
            batch=BATCH,
            bound=scene.bound,
            full=json.dumps(scene.full),
            rate=scene.rate,
            steps=steps,
        )
    )
    return path


def write_slow_tool(model: Path, folder: Path) -> Path:
    """Write the config of a task with a slow tool, three answers of 16 tokens each, and return its path."""
    path = folder / "slow_tool.toml"
    config = _CONFIG.format(
        model=json.dumps(str(model)),
        environment=json.dumps(str(Path(__file__).parent / "slow_tool" / "environment.py")),
        prompts='""',
        context=256,
        answer=16,
        group=GROUP,
        batch=BATCH,
        bound=2,
        full="true",
        rate=1e-6,
        steps=10,
    )
    args = "args = { tool_s = 0.5, sigma = 1.5, answer_tokens = 16 }"
    path.write_text(config.replace('args = { prompts = "" }', args))
    return path
