"""The embedded engine against transformers' generate, interleaved in one process.

    python benchmarks/decode.py [--model PATH] [--threads 1] [--concurrent 32] [--scale 0.25] [--rounds 2]

Scenes, each with as many requests as `--concurrent`:
- equal: prompts of 32 tokens, answers of 128 * scale tokens.
- ragged: prompts of 32 tokens, answers spread evenly from 8 to 256, times scale. transformers runs all rows
  to the longest answer; only the tokens asked for count as useful.
- groups: groups of 8 with a prompt of 512 * scale tokens in common, answers of 64 * scale tokens.

transformers samples without log-probs; the engine always returns them. Without a path the model is a random
one of SmolLM2-135M's shape. The last line is one JSON object: medians of useful tokens per second of wall
time and of CPU time (all threads of this process), ratios of the medians, and the pause of a weight swap with
every request running. On a shared machine trust the ratios by CPU time, with one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from array import array
from statistics import median
from typing import NamedTuple

import torch
from keep import keep
from transformers import LlamaConfig, LlamaForCausalLM

from headway.core.clock import process_cpu_s, stopwatch
from headway.core.protocols import GenerateRequest, Sampling
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.shape import model_shape


class Scene(NamedTuple):
    name: str
    prompts: list[list[int]]
    lengths: list[int]  # answer tokens of each request


def smollm2_shape() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def scenes(num: int, scale: float, vocab: int) -> list[Scene]:
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(3, vocab) for _ in range(max(length, 2))]

    def scaled(length: float) -> int:
        return max(1, round(length * scale))

    spread = [scaled(8 + (256 - 8) * i / max(num - 1, 1)) for i in range(num)]
    draw.shuffle(spread)
    shared = [prompt(scaled(512)) for _ in range((num + 7) // 8)]
    return [
        Scene("equal", [prompt(32) for _ in range(num)], [scaled(128)] * num),
        Scene("ragged", [prompt(32) for _ in range(num)], spread),
        Scene("groups", [shared[i // 8] for i in range(num)], [scaled(64)] * num),
    ]


class Spent(NamedTuple):
    wall_s: float
    cpu_s: float


def spent_since(began: Spent) -> Spent:
    return Spent(stopwatch() - began.wall_s, process_cpu_s() - began.cpu_s)


def now() -> Spent:
    return Spent(stopwatch(), process_cpu_s())


async def run_engine(engine: EmbeddedEngine, scene: Scene, tag: str) -> Spent:
    """Return the time that all requests took."""

    async def one(index: int) -> int:
        name = f"{tag}.{scene.name}.{index}"
        item = GenerateRequest(
            name,
            name,
            f"{tag}.{index // 8}",
            "policy",
            array("i", scene.prompts[index]),
            Sampling(scene.lengths[index], seed=index),
        )
        return sum([len(chunk.token_ids) async for chunk in engine.generate(item)])

    began = now()
    counts = await asyncio.gather(*(one(index) for index in range(len(scene.prompts))))
    took = spent_since(began)
    assert counts == scene.lengths, "the engine stopped early"
    for index in range(len(scene.prompts)):  # no KV of this round may help the next
        await engine.end_session(f"{tag}.{scene.name}.{index}")
    return took


def run_transformers(model: LlamaForCausalLM, scene: Scene) -> Spent:
    """Return the time of one batch that runs to the longest answer."""
    longest = max(scene.lengths)
    prompts = torch.tensor(scene.prompts)
    began = now()
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        min_new_tokens=longest,
        max_new_tokens=longest,
        pad_token_id=0,
    )
    return spent_since(began)


async def swap_pause(engine: EmbeddedEngine, num: int, kv: str) -> float:
    """Return the pause of an apply while requests of 32 + 400 tokens decode."""
    scene = Scene(f"swap-{kv}", scenes(num, 1.0, 1000)[0].prompts, [400] * num)
    running = asyncio.ensure_future(run_engine(engine, scene, "swap"))
    resident = num * 34 / (engine.capabilities().max_running * engine.capabilities().max_context_tokens)
    while engine.stats().kv_used_fraction < resident:  # noqa: ASYNC110, the engine has no event for it
        await asyncio.sleep(0.01)
    pause = await engine.apply(0, 1, "", kv)
    await engine.abort(None)
    await asyncio.gather(running, return_exceptions=True)  # its count of tokens falls short, as it must
    return pause


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory of a Llama checkpoint")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sweep", action="store_true", help="the engine alone at 1, 8, 32 and 64 requests")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = (
        LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
        if options.model
        else smollm2_shape()
    )
    model.generation_config.eos_token_id = None
    vocab = model.config.vocab_size
    engine = EmbeddedEngine(
        model,
        model_shape(model.config.to_dict()),
        GeneratorSettings(threads=options.threads, max_running=64, max_context_tokens=1024),
        replica="bench",
        decode_text=None,
        read_weights=lambda _: model.state_dict().items(),
    )
    warm = Scene("warm", [[1, 2, 3]] * options.concurrent, [2] * options.concurrent)
    await run_engine(engine, warm, "warm")
    run_transformers(model, warm)
    result: dict[str, object] = {"threads": options.threads, "concurrent": options.concurrent}
    if options.sweep:
        for num in (1, 8, 32, 64):
            scene = scenes(num, options.scale, vocab)[0]
            took = await run_engine(engine, scene, f"sweep{num}")
            rates = [sum(scene.lengths) / each for each in took]
            print(f"engine alone, {num:3} requests: {rates[0]:7.1f} tokens/s, {rates[1]:7.1f} a CPU second")
            result[f"sweep.{num}.tokens_per_s"] = round(rates[0], 1)
            result[f"sweep.{num}.tokens_per_cpu_s"] = round(rates[1], 1)
    print("useful tokens per second of wall time, of CPU time")
    print(f"{'scene':8} {'engine':>15} {'transformers':>15} {'ratio':>12}")
    for scene in scenes(options.concurrent, options.scale, vocab):
        useful = sum(scene.lengths)
        ours: list[Spent] = []
        theirs: list[Spent] = []
        for number in range(options.rounds):
            ours.append(await run_engine(engine, scene, f"round{number}"))
            theirs.append(run_transformers(model, scene))
            a, b = ([useful / each for each in took] for took in (ours[-1], theirs[-1]))
            print(
                f"{scene.name:8} {a[0]:7.1f} {a[1]:7.1f} {b[0]:7.1f} {b[1]:7.1f} "
                f"{a[0] / b[0]:6.2f} {a[1] / b[1]:5.2f}",
                flush=True,
            )
        for index, unit in enumerate(("s", "cpu_s")):
            fast, slow = (useful / median(each[index] for each in took) for took in (ours, theirs))
            result[f"{scene.name}.engine_tokens_per_{unit}"] = round(fast, 1)
            result[f"{scene.name}.transformers_tokens_per_{unit}"] = round(slow, 1)
            result[f"{scene.name}.ratio_by_{unit}"] = round(fast / slow, 2)
    for kv in ("keep", "recompute"):
        result[f"swap_pause_s.{kv}"] = round(await swap_pause(engine, options.concurrent, kv), 4)
    await engine.close()
    keep("decode", result)


if __name__ == "__main__":
    asyncio.run(main())
