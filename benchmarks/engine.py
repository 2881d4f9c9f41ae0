"""The embedded engine against transformers' generate, in turns, each in a process of its own.

    python benchmarks/engine.py [--model smollm2] [--threads 2] [--concurrent 64] [--rounds 5] [--scale 1]

Scenes, each with as many requests as `--concurrent` (prompts are random and new in every round):

- equal: prompts of 32 tokens, answers of 128.
- ragged: prompts of 32 tokens, answers spread evenly from 8 to 256. transformers runs all rows to the longest
  answer; only the tokens asked for count as useful.
- shared_prompt: groups of 8 with a prompt of 512 tokens in common, answers of 32; the time of the prompts
  counts too.

`--scale` shortens prompts above 32 tokens and all answers. Both in f32, temperature 1, no truncation.
transformers samples without log-probs; the engine always returns them, and has its default settings.

`SCENE.ratio` is the ratio of the medians of useful tokens a second of wall time, `SCENE.cpu_ratio` that of
CPU time, which other work on the machine disturbs less. `peak_mib` is the largest resident set of the process
while it ran the scene. `swap_pause_s.keep` and `.recompute`: seconds without decoding when all weights are
taken up anew while every request decodes; recompute includes the prefill of all running contexts.
`roofline.*`: what the machine allows, measured in the same run (see roofline.py).

The model is SmolLM2-135M when it was fetched, and a random one of its shape otherwise; or `tiny`, or a
directory. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from engine_side import GROUP, MAX_RUNNING
from keep import keep
from roofline import measure

from headway.models.cache import cache_root
from headway.models.shape import read_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT = 32  # prompt tokens
SWAP_TOKENS = 400


class Scene(NamedTuple):
    """What is asked for in one round."""

    name: str
    prompts: list[list[int]]
    lengths: list[int]  # answer tokens of each request


def scenes(num: int, scale: float, vocab: int, seed: int) -> list[Scene]:
    """Return the scenes of one round."""
    draw = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(3, vocab) for _ in range(max(length, 2))]

    def scaled(length: float) -> int:
        return max(1, round(length * scale))

    spread = [scaled(8 + (256 - 8) * i / max(num - 1, 1)) for i in range(num)]
    draw.shuffle(spread)
    shared = [prompt(scaled(512)) for _ in range((num + GROUP - 1) // GROUP)]
    return [
        Scene("equal", [prompt(SHORT) for _ in range(num)], [scaled(128)] * num),
        Scene("ragged", [prompt(SHORT) for _ in range(num)], spread),
        Scene("shared_prompt", [shared[i // GROUP] for i in range(num)], [scaled(32)] * num),
    ]


class Side:
    """A process that does one job at a time."""

    def __init__(self, name: str, model: Path, threads: int, context: int) -> None:
        script = str(Path(__file__).parent / "engine_side.py")
        command = [sys.executable, script, name, str(model), str(threads), str(context)]
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def do(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do a job and return what it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}; its error is above")
        return line

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def compare(ours: Side, theirs: Side, rounds: int, num: int, scale: float, vocab: int) -> dict[str, object]:
    """Run the scenes of all rounds, both sides in turns."""
    took: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(rounds):
        for scene in scenes(num, scale, vocab, number):
            for side in (ours, theirs):
                job = {**scene._asdict(), "name": f"{scene.name}-{number}"}
                useful, spent = sum(scene.lengths), side.do(job)
                rates = {"s": useful / spent["s"], "cpu_s": useful / spent["cpu_s"], "peak": spent["peak"]}
                took.setdefault((scene.name, side.name), []).append(rates)
                print(
                    f"{scene.name:14} {side.name:13} {rates['s']:8.1f} tokens/s, "
                    f"{rates['cpu_s']:8.1f} a CPU second, peak {spent['peak'] / 2**20:6.0f} MiB",
                    flush=True,
                )
    result: dict[str, object] = {}
    for name in dict.fromkeys(scene for scene, _ in took):
        for key, unit in (("ratio", "s"), ("cpu_ratio", "cpu_s")):
            rates = [median(each[unit] for each in took[name, side.name]) for side in (ours, theirs)]
            result[f"{name}.{key}"] = round(rates[0] / rates[1], 3)
        for side in (ours, theirs):
            runs = took[name, side.name]
            result[f"{name}.{side.name}.tokens_per_s"] = round(median(run["s"] for run in runs), 1)
            result[f"{name}.{side.name}.peak_mib"] = round(max(run["peak"] for run in runs) / 2**20)
    return result


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny, or a checkpoint directory")
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--concurrent", type=int, default=MAX_RUNNING)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(arguments)


def model_directory(name: str, folder: Path) -> Path:
    """Return a model's directory; a random one of SmolLM2's shape is made where that was not fetched."""
    place = cache_root() / "models" / name if name in ("smollm2", "tiny") else Path(name)
    if place.is_dir() or name != "smollm2":
        return place
    from shapes import random_llama

    from headway.models.tiny import write_tokenizer

    print("SmolLM2 was not fetched: random weights of its shape", flush=True)
    random_llama().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as name:
        model = model_directory(options.model, Path(name))
        shape = read_shape(model)
        num, scale = options.concurrent, options.scale
        first = scenes(num, scale, shape.vocab, 0)
        longest = max(len(s.prompts[i]) + s.lengths[i] for s in first for i in range(num))
        context = min(max(longest, SHORT + SWAP_TOKENS), shape.max_context_tokens)
        mean_context = SHORT + first[0].lengths[0] / 2
        roof = measure(shape, options.threads, num, mean_context)
        result: dict[str, object] = {"threads": options.threads, "concurrent": num, "scale": scale}
        result |= {"rounds": options.rounds, "model": options.model}
        result |= {
            "roofline.read_gb_per_s": round(roof.read_bytes_per_s / 1e9, 2),
            "roofline.gemm_gflops": round(roof.flops_per_s / 1e9, 1),
            "roofline.gemm_tokens_per_s": round(roof.gemm_tokens_per_s, 1),
            "roofline.read_tokens_per_s": round(roof.read_tokens_per_s, 1),
        }
        for key, value in result.items():
            print(f"{key:<36} {value}", flush=True)
        num_told = len(result)
        sides = [Side(name, model, options.threads, context) for name in ("headway", "transformers")]
        for side in sides:
            side.do({"name": "warm", "prompts": [[1, 2, 3]] * num, "lengths": [4] * num})
        result |= compare(sides[0], sides[1], options.rounds, num, scale, shape.vocab)
        sides[1].close()
        reached = result["equal.headway.tokens_per_s"]
        assert isinstance(reached, float)
        result["equal.of_roofline"] = round(reached / roof.tokens_per_s, 3)
        for kv in ("keep", "recompute"):
            pauses: list[float] = []
            for number in range(min(options.rounds, 3)):
                prompts = scenes(num, scale, shape.vocab, 1000 + number)[0].prompts
                job = {
                    "name": f"{kv}{number}",
                    "prompts": prompts,
                    "lengths": [context - SHORT] * num,
                    "kv": kv,
                }
                pauses.append(sides[0].do(job)["pause"])
            result[f"swap_pause_s.{kv}"] = round(median(pauses), 4)
        sides[0].close()
    for key in list(result)[num_told:]:
        print(f"{key:<36} {result[key]}")
    keep("engine", result)


if __name__ == "__main__":
    main()
