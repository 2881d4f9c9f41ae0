"""What adapters cost: one engine answers for 0, 1, 8 and 64 of them, against an engine without.

    python benchmarks/adapters.py [--model PATH | --tiny] [--threads 1] [--concurrent 64] [--tokens 32]
                                  [--rank 16] [--rounds 5]

Every request has a prompt of 32 tokens of its own and `--tokens` of an answer; all decode together. Request i
is for adapter i modulo their number, so that neighbouring rows are of different ones. Adapters are on all
linear layers. 0 is the main policy's own rows in the engine that has 64 adapters loaded. The scenes are
interleaved, round after round. Without a path the model is a random one of SmolLM2-135M's shape.

The last line is one JSON object: medians of tokens per second of wall time and of CPU time (all threads of
this process), each number's ratio to the base alone by CPU time, the mean time to load an adapter and the
longest pause of decoding for it in seconds, and an adapter's bytes. On a shared machine trust the ratios by
CPU time, with one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from keep import keep
from shapes import random_llama
from spent import Spent, now, spent_since
from transformers import LlamaForCausalLM

from headway.core.protocols import MAIN_POLICY, GenerateRequest, Sampling
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.adapter_config import linear_layers
from headway.models.shape import ModelShape, model_shape
from headway.weights.publish import write_adapter

NUMBERS = (0, 1, 8, 64)
PROMPT = 32


@dataclass(slots=True)
class Load:
    """What is asked of the engines."""

    concurrent: int
    tokens: int
    vocab: int
    spent: dict[str, list[Spent]] = field(default_factory=dict)

    async def run(self, engine: EmbeddedEngine, scene: str, policies: list[str], tag: str) -> None:
        draw = random.Random(0)

        async def one(index: int) -> int:
            name = f"{scene}.{tag}.{index}"
            prompt = array("i", [draw.randrange(3, self.vocab) for _ in range(PROMPT)])
            policy = policies[index % len(policies)]
            item = GenerateRequest(name, name, name, policy, prompt, Sampling(self.tokens, seed=index))
            return sum([len(chunk.token_ids) async for chunk in engine.generate(item)])

        began = now()
        counts = await asyncio.gather(*(one(index) for index in range(self.concurrent)))
        self.spent.setdefault(scene, []).append(spent_since(began))
        assert counts == [self.tokens] * self.concurrent, "the engine stopped early"
        for index in range(self.concurrent):  # no KV of this round may help the next
            await engine.end_session(f"{scene}.{tag}.{index}")


def make_adapters(folder: Path, shape: ModelShape, number: int, rank: int) -> list[str]:
    places: list[str] = []
    for index in range(number):
        tensors: dict[str, torch.Tensor] = {}
        for module, (outputs, inputs) in linear_layers(shape).items():
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, inputs) * 0.02
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(outputs, rank) * 0.02
        places.append(
            str(write_adapter(folder, 0, index, tensors, rank=rank, alpha=2 * rank, keep=number + 1))
        )
    return places


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory of a Llama checkpoint")
    parser.add_argument("--tiny", action="store_true", help="a model of 0.6M parameters")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.model:
        model = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    else:
        model = random_llama(small=options.tiny)
    shape = model_shape(model.config.to_dict())
    settings = GeneratorSettings(
        threads=options.threads,
        max_running=options.concurrent,
        max_context_tokens=PROMPT + options.tokens + 2,
        max_answer_tokens=options.tokens,
        max_adapter_rank=options.rank,
        max_adapters=max(NUMBERS),
    )
    alone, engine = (
        EmbeddedEngine(model, shape, settings, replica=name, decode_text=None, read_weights=lambda _: ())
        for name in ("alone", "adapters")
    )
    load = Load(options.concurrent, options.tokens, shape.vocab)
    names = [f"adapter{index}" for index in range(max(NUMBERS))]
    result: dict[str, object] = {
        "threads": options.threads,
        "concurrent": options.concurrent,
        "rank": options.rank,
        "num_params": shape.num_params,
    }
    with tempfile.TemporaryDirectory() as folder:
        began = now()
        pauses: list[float] = []
        places = make_adapters(Path(folder), shape, len(names), options.rank)
        began = now()
        for number, (name, place) in enumerate(zip(names, places, strict=True)):
            pauses.append(await engine.load_adapter(name, 0, number, place, "keep"))
        result["load_s"] = round(spent_since(began).wall_s / len(names), 4)
        result["pause_s"] = round(max(pauses), 6)
        result["bytes_each"] = engine.stats().adapter_bytes // len(names)
    scenes = {str(number): names[:number] or [MAIN_POLICY] for number in NUMBERS}
    await load.run(alone, "warm", [MAIN_POLICY], "")
    await load.run(engine, "warm", names, "")
    for number in range(options.rounds):
        await load.run(alone, "base", [MAIN_POLICY], f"round{number}")
        for scene, policies in scenes.items():
            await load.run(engine, scene, policies, f"round{number}")
    await alone.close()
    await engine.close()
    useful = options.concurrent * options.tokens
    print(f"{'adapters':10} {'tokens/s':>10} {'a CPU second':>13} {'to base':>8}")
    base = median(each.cpu_s for each in load.spent["base"])
    for scene in ("base", *scenes):
        wall, cpu = (median(each[part] for each in load.spent[scene]) for part in (0, 1))
        print(f"{scene:10} {useful / wall:10.1f} {useful / cpu:13.1f} {base / cpu:8.2f}")
        result[f"{scene}.tokens_per_s"] = round(useful / wall, 1)
        result[f"{scene}.tokens_per_cpu_s"] = round(useful / cpu, 1)
        if scene != "base":
            result[f"{scene}.ratio_by_cpu_s"] = round(base / cpu, 3)
    keep("adapters", result)


if __name__ == "__main__":
    asyncio.run(main())
