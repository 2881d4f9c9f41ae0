"""The scenes of benchmarks/loop.py: models, prompts, and Headway's config of each.

All models get a chat template that adds nothing to the prompt, so that both sides see the same token ids, and
an end token that is never sampled, so that no answer of either side ends early: in the random models its
logit is far below all others (the learning rate of the measured scenes is too low to change that), and
SmolLM2's copy names a reserved token as its end. Both sides make sure of it.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from headway.models.cache import cache_root
from headway.models.tiny import END_OF_TEXT, IM_END, VOCAB, write_tokenizer

GROUP, BATCH = 8, 32
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_UNREACHED = "<gh_stars>"  # SmolLM2: a marker of code repositories
_CONFIG = """
[model]
path = {model}

[environment]
name = {environment}
args = {{ prompts = {prompts} }}
rollout_timeout_s = 3600

[generator]
threads = 1
max_running = 64
max_context_tokens = {context}
max_answer_tokens = {answer}

[queue]
group_size = {group}
batch_size = {batch}
bound = {bound}
drop_zero_advantage = false

[trainer]
threads = 1
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
        steps: optimizer steps that are measured in each round.
        their_rows: sequences in one of TRL's micro-batches; its whole batch where memory allows it.
        their_threads: what TRL is tried with in each round, the best median counts: a number of threads,
            and whether they sleep while they wait (OMP_WAIT_POLICY) or spin, which is faster on idle cores.
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
        Scene("tiny", "tiny", 16, 64, 1e-6, 16, BATCH, EVERY_WAY),
        Scene("smollm2.short", "smollm2", 64, 64, 1e-4, 3, 8),
        Scene("smollm2.long", "smollm2", 512, 64, 1e-4, 2, 4),
    )
}


LEARNING = replace(SCENES["micro"], name="reward", rate=5e-4, fixed_length=False)
"""What the rewards of both sides are compared on; here the end token may be learned, by both alike."""


def make_model(name: str, folder: Path) -> Path:
    """Return the directory of a scene's model, made in `folder` if it is not there yet."""
    place = folder / name
    if place.exists():
        return place
    staging = folder / f"{name}.part"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    if name == "smollm2":
        _copy_smollm2(staging)
    else:
        _make_random(staging, *((64, 2) if name == "micro" else (128, 4)))
    (staging / "chat_template.jinja").write_text(_TEMPLATE)
    return staging.rename(place)


def _make_random(folder: Path, hidden: int, layers: int) -> None:
    """Write a byte-level Llama of random weights whose end token is never sampled.

    The first coordinate of the residual stream is a constant that no layer reads or writes, and the tied
    output layer turns it into a logit far below the others for the end token alone.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.08, bos_token_id=None, eos_token_id=IM_END, pad_token_id=END_OF_TEXT,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 2.0
        model.model.embed_tokens.weight[IM_END, 0] = -2.0
        model.model.norm.weight[0] = 3.0
        for layer in model.model.layers:
            layer.input_layernorm.weight[0] = layer.post_attention_layernorm.weight[0] = 0.0
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    model.save_pretrained(folder)


def _copy_smollm2(folder: Path) -> None:
    """Copy the fetched SmolLM2 with another end token; raises SystemExit when it is not there."""
    source = cache_root() / "models" / "smollm2"
    if not source.is_dir():
        raise SystemExit("SmolLM2 is not there: `headway model fetch smollm2`, or leave out its scenes")
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    shutil.copy(source / "tokenizer.json", folder)
    added = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    unreached = next(token["id"] for token in added if token["content"] == _UNREACHED)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((source / name).read_text(encoding="utf-8"))
        if name == "tokenizer_config.json":
            settings |= {"eos_token": _UNREACHED, "pad_token": "<|endoftext|>"}
        else:
            settings |= {"eos_token_id": unreached, "pad_token_id": 0}
        (folder / name).write_text(json.dumps(settings))


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
