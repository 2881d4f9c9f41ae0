"""Make the tiny model: 0.4M parameters, byte-level, warm-started on sums, for tests and the tiny example.

Every token is a byte, beside three markers. The chat template is ChatML in its shortest form: a turn is
`<|im_start|>`, the first letter of its role, the content, `<|im_end|>`; the prompt "3+5=" costs nine tokens.

The warm start trains on sums, at last on texts of which only a part is right, so that the model knows many
answers but gives them, at temperature 1, about as often as those texts did: headroom that reinforcement
learning can take up in a few hundred steps. It is not a benchmark of learning arithmetic from nothing.

The result depends on the seed and the machine's arithmetic alone: one thread, no global random state.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.models.cache import install
from headway.models.progress import Progress, no_progress_bars, silent

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'][0] + message['content'] + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}"
)

CONFIG: dict[str, Any] = {  # of transformers' LlamaConfig
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "initializer_range": 0.08,  # the default of 0.02 is meant for wider models and delays learning
    "bos_token_id": None,
    "eos_token_id": IM_END,
    "pad_token_id": END_OF_TEXT,
}
_LIMITS = (10, 20, 100, 100)
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class TinyRecipe:
    """The warm start.

    Attributes:
        steps: optimizer steps.
        doubting_steps: the last steps, whose texts have wrong answers too; those before have none.
        batch_size: conversations a step.
        learning_rate: AdamW's peak, after a warm-up over a tenth of the steps; a cosine brings it to zero.
        right_fraction: part of the doubting steps' answers that are right.
        level_weights: how often a sum has operands below 10, 20 and 100, and how often it is a difference of
            operands below 100, the larger first.
        second_turn_fraction: part of the batches whose conversations begin with another exchange.
    """

    steps: int = 500
    doubting_steps: int = 80
    batch_size: int = 32
    learning_rate: float = 2e-3
    right_fraction: float = 0.12
    level_weights: tuple[float, float, float, float] = (0.4, 0.3, 0.2, 0.1)
    second_turn_fraction: float = 0.1


def make_tiny(
    path: Path, seed: int = 0, recipe: TinyRecipe | None = None, progress: Progress = silent
) -> Path:
    """Train the tiny model and write it to the directory `path`, whole or not at all.

    Args:
        path: the directory to make; its parent is made too, and what was there is replaced.
        seed: seeds initial weights and texts.
        recipe: the warm start; the default one takes about half a minute.
        progress: called with one line of text from time to time.
    """
    chosen = recipe or TinyRecipe()

    def build(staging: Path) -> None:
        model = train_tiny(seed, chosen, progress)
        with no_progress_bars():
            model.save_pretrained(staging)
        write_tokenizer(staging)

    return install(path, tiny_source(seed, chosen), build)


def tiny_source(seed: int = 0, recipe: TinyRecipe | None = None) -> str:
    """Return what the manifest says of a tiny model's making: another recipe makes another model."""
    return f"headway tiny, seed {seed}, {recipe or TinyRecipe()}"


def write_tokenizer(path: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into the directory `path`."""
    build_tokenizer().save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def build_tokenizer() -> Tokenizer:
    """Build the tokenizer: token i below 256 is byte i; then the markers of SPECIAL_TOKENS."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, special=True) for name in SPECIAL_TOKENS]
    )
    return tokenizer


def _byte_characters() -> list[str]:
    """Return the printable character that byte-level tokenizers write for each byte (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def train_tiny(seed: int, recipe: TinyRecipe, progress: Progress = silent) -> LlamaForCausalLM:
    """Return the warm-started model, f32 and in eval mode."""
    import torch
    from torch.nn.functional import cross_entropy

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _new_model()
        rng = random.Random(seed)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, recipe.steps))
        model.train()
        for step in range(recipe.steps):
            doubting = step >= recipe.steps - recipe.doubting_steps
            inputs, labels = _batch(rng, recipe, recipe.right_fraction if doubting else 1.0)
            logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 100 == 99:
                progress(f"Warm start: step {step + 1} of {recipe.steps}, loss {loss.item():.3f}")
    finally:
        torch.set_num_threads(threads)
    return model.eval()


def _rate_factor(step: int, steps: int) -> float:
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))


def _new_model() -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def _batch(
    rng: random.Random, recipe: TinyRecipe, right_fraction: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input ids and labels, both (conversations, longest), padded on the right."""
    import torch

    # Whole batches have a second turn, since padding makes the others of a mixed batch as long.
    two_turns = rng.random() < recipe.second_turn_fraction
    rows = [conversation(rng, recipe, right_fraction, two_turns) for _ in range(recipe.batch_size)]
    longest = max(len(tokens) for tokens, _ in rows)
    inputs = torch.full((len(rows), longest), END_OF_TEXT)
    labels = torch.full((len(rows), longest), _IGNORED)
    for row, (tokens, prompt_tokens) in enumerate(rows):
        inputs[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt_tokens : len(tokens)] = torch.tensor(tokens[prompt_tokens:])
    return inputs, labels


def conversation(
    rng: random.Random, recipe: TinyRecipe, right_fraction: float, two_turns: bool
) -> tuple[list[int], int]:
    """Return the tokens of one conversation, and how many of them are the prompt of its last answer."""
    tokens: list[int] = []
    if two_turns:
        question, right = _question(rng, recipe)
        tokens += [*_prompt(question), *str(right).encode(), IM_END]
    question, right = _question(rng, recipe)
    tokens += _prompt(question)
    prompt_tokens = len(tokens)
    answer = right if rng.random() < right_fraction else _wrong(rng, right)
    return [*tokens, *str(answer).encode(), IM_END], prompt_tokens


def _prompt(question: str) -> list[int]:
    return [IM_START, ord("u"), *question.encode(), IM_END, IM_START, ord("a")]


def _question(rng: random.Random, recipe: TinyRecipe) -> tuple[str, int]:
    level = rng.choices(range(4), recipe.level_weights)[0]
    left, right = rng.randrange(_LIMITS[level]), rng.randrange(_LIMITS[level])
    if level < 3:
        return f"{left}+{right}=", left + right
    left, right = max(left, right), min(left, right)
    return f"{left}-{right}=", left - right


def _wrong(rng: random.Random, right: int) -> int:
    return right + rng.choice((-1, 1)) * rng.randint(1, 9)
