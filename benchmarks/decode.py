"""The embedded engine against transformers' generate, interleaved in one process.

    python benchmarks/decode.py [--model PATH] [--threads 1] [--concurrent 32] [--scale 0.25] [--rounds 2]

Scenes, each with as many requests as `--concurrent`:
- equal: prompts of 32 tokens, answers of 128 * scale tokens.
- ragged: prompts of 32 tokens, answers spread evenly from 8 to 256, times scale. transformers runs all rows
  to the longest answer; only the tokens asked for count as useful.
- groups: groups of 8 with a prompt of 512 * scale tokens in common, answers of 64 * scale tokens.

transformers samples without log-probs; the engine always returns them. Without a path the model is a random
one of SmolLM2-135M's shape. The last line is one JSON object: medians in useful tokens per second of wall
time, ratios of the medians, and the pause of a weight swap with every request running.
On a shared machine only the ratios mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from array import array
from statistics import median
from typing import NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.core.clock import stopwatch
from headway.core.protocols import GenerateRequest, Sampling
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings


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


async def run_engine(engine: EmbeddedEngine, scene: Scene, tag: str) -> float:
    """Return wall seconds of all requests."""

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

    began = stopwatch()
    counts = await asyncio.gather(*(one(index) for index in range(len(scene.prompts))))
    took = stopwatch() - began
    assert counts == scene.lengths, "the engine stopped early"
    for index in range(len(scene.prompts)):  # no KV of this round may help the next
        await engine.end_session(f"{tag}.{scene.name}.{index}")
    return took


def run_transformers(model: LlamaForCausalLM, scene: Scene) -> float:
    """Return wall seconds of one batch that runs to the longest answer."""
    longest = max(scene.lengths)
    prompts = torch.tensor(scene.prompts)
    began = stopwatch()
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        min_new_tokens=longest,
        max_new_tokens=longest,
        pad_token_id=0,
    )
    return stopwatch() - began


async def swap_pause(engine: EmbeddedEngine, scene: Scene, kv: str) -> float:
    """Return the pause of an apply while every request of a scene runs."""
    running = asyncio.ensure_future(run_engine(engine, scene, f"swap-{kv}"))
    while engine.stats().num_running < len(scene.prompts):
        await asyncio.sleep(0.01)
    pause = await engine.apply(0, 1, "", kv)
    await engine.abort(None)
    await asyncio.gather(running, return_exceptions=True)
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
        model.config,
        GeneratorSettings(threads=options.threads, max_running=64, max_context_tokens=1024),
        replica="bench",
        decode_text=None,
        read_weights=lambda _: model.state_dict().items(),
    )
    warm = Scene("warm", [[1, 2, 3]] * 8, [2] * 8)
    await run_engine(engine, warm, "warm")
    run_transformers(model, warm)
    result: dict[str, object] = {"threads": options.threads, "concurrent": options.concurrent}
    if options.sweep:
        for num in (1, 8, 32, 64):
            scene = scenes(num, options.scale, vocab)[0]
            rate = sum(scene.lengths) / await run_engine(engine, scene, f"sweep{num}")
            print(f"engine alone, {num:3} requests: {rate:7.1f} tokens/s", flush=True)
            result[f"sweep.{num}"] = round(rate, 1)
    print(f"{'scene':8} {'round':>5} {'engine tok/s':>13} {'transformers':>13} {'ratio':>6}")
    for scene in scenes(options.concurrent, options.scale, vocab):
        useful = sum(scene.lengths)
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(options.rounds):
            ours.append(useful / await run_engine(engine, scene, f"round{number}"))
            theirs.append(useful / run_transformers(model, scene))
            print(
                f"{scene.name:8} {number:5} {ours[-1]:13.1f} {theirs[-1]:13.1f} {ours[-1] / theirs[-1]:6.2f}",
                flush=True,
            )
        result[f"{scene.name}.engine_tokens_per_s"] = round(median(ours), 1)
        result[f"{scene.name}.transformers_tokens_per_s"] = round(median(theirs), 1)
        result[f"{scene.name}.ratio"] = round(median(ours) / median(theirs), 2)
    running = scenes(options.concurrent, options.scale, vocab)[1]
    for kv in ("keep", "recompute"):
        result[f"swap_pause_s.{kv}"] = round(await swap_pause(engine, running, kv), 4)
    await engine.close()
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
