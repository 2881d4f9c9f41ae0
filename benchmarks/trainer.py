"""A step of the trainer against a plain transformers + peft + torch loop.

    python benchmarks/trainer.py [--model PATH | --small] [--threads 1] [--rounds 5] [--only lora.short]

One step on one group of 8 answers of 64 tokens to a prompt of 64 (short) or 512 tokens (long), with LoRA of
rank 16 on all linear layers or full fine-tuning. Both sides read the batch as given, compute the same loss
(GRPO, token-mean), clip, and take a step of AdamW. The plain loop pads, computes every sequence with its own
prompt and the logits of every token, and takes as many sequences a pass as make about as many positions as a
row of the trainer has (`trainer.micro_batch_tokens`).

Each side is a child process of its own, so that its peak memory (VmHWM) is its own; they take turns, a step
each. Without a path the model is a random one of SmolLM2-135M's shape. Times are CPU seconds of all threads,
for a shared machine changes wall time at will. The last line is one JSON object: for each setting medians,
`ratio` (useful tokens a second, ours over theirs), `memory_ratio` (peaks, ours over theirs), and MFU.

MFU counts the FLOPs of the positions that a side had to compute once the padding is left out: forward and
backward of the layers, the output layer where a token is trained (ours) or everywhere (theirs), causal
attention, real lengths, recompute excluded. The peak is what torch's f32 product of 1024 x 1024 x 1024 gets
here with as many threads, in CPU time too.

`head.memory_share` is what log-probs and entropies of 8192 tokens, with a trained output layer and the
backward pass, add to the peak, over the bytes of tokens x vocabulary; it must be below 0.25.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from statistics import median
from typing import Any

import torch
from keep import keep
from shapes import random_llama
from transformers import AutoModelForCausalLM

from headway.core.clock import process_cpu_s, stopwatch
from headway.core.facts import MFU_CONVENTION
from headway.models.shape import model_shape

SETTINGS = ("lora.short", "lora.long", "full.short", "full.long")
GROUP = 8


def make_model(options: argparse.Namespace) -> Any:
    if options.model:
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    return random_llama(small=options.small)


def draw(options: argparse.Namespace, vocab: int) -> tuple[list[int], list[list[int]]]:
    rng = random.Random(0)
    prompt = [rng.randrange(3, vocab) for _ in range(512 if options.side_of.endswith("long") else 64)]
    return prompt, [[rng.randrange(3, vocab) for _ in range(64)] for _ in range(GROUP)]


def ours(options: argparse.Namespace) -> Any:
    """Return a step of Headway's trainer, which tells the positions that it computed."""
    from headway.algorithms.settings import AlgorithmSettings
    from headway.core.commands import Row
    from headway.core.payload import Payload, PayloadWriter
    from headway.core.records import TrainingSample, VersionSpan
    from headway.trainer.local import LocalTrainer
    from headway.trainer.settings import TrainerSettings

    model = make_model(options)
    prompt, answers = draw(options, model.config.vocab_size)
    root = Path(options.folder)
    writer = PayloadWriter(root / "payloads", options.side_of)
    rows = []
    for index, answer in enumerate(answers):
        ids, mask = array("i", prompt + answer), array("b", [0] * len(prompt) + [1] * len(answer))
        logps = array("f", [-10.0 * flag for flag in mask])
        sample = TrainingSample(ids, mask, logps, [VersionSpan(0, 0, len(answer))], 1.0)
        reference = writer.append(Payload(f"r{index}", "t", [sample], {}))
        rows.append(Row(f"r{index}", "g", reference, index - (GROUP - 1) / 2))
    full = options.side_of.startswith("full")
    settings = TrainerSettings(threads=options.threads, full=full, learning_rate=1e-6)
    dirs = {f"{name}_dir": root / name for name in ("weights", "checkpoint")}
    trainer = LocalTrainer(model, settings, AlgorithmSettings(), payload_dir=root / "payloads", **dirs)
    return lambda: trainer.step(rows).num_tokens


def plain(options: argparse.Namespace) -> Any:
    """Return a step of the loop that one would write with transformers and peft."""
    from peft import LoraConfig, get_peft_model

    from headway.trainer.settings import TrainerSettings

    model = make_model(options)
    prompt, answers = draw(options, model.config.vocab_size)
    if options.side_of.startswith("lora"):
        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.0, fused=True)
    ids = torch.tensor([prompt + answer for answer in answers])
    advantages = torch.arange(GROUP)[:, None] - (GROUP - 1) / 2
    a_pass = max(1, TrainerSettings().micro_batch_tokens // ids.shape[1])

    def step() -> int:
        for part in range(0, GROUP, a_pass):
            batch, advantage = ids[part : part + a_pass], advantages[part : part + a_pass]
            logits = model(input_ids=batch, attention_mask=torch.ones_like(batch)).logits[
                :, len(prompt) - 1 : -1
            ]
            logp = logits.log_softmax(-1).gather(2, batch[:, len(prompt) :, None]).squeeze(2)
            ratio = (logp + 10.0).exp()
            objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            objective = torch.where((advantage < 0) & (ratio > 3), 3 * advantage, objective)
            (-objective.sum() / (GROUP * 64)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ids.numel()

    return step


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def head_share() -> float:
    """Return what log-probs of 8192 tokens and their gradients add to the peak, over tokens x vocabulary."""
    from headway.trainer.logprobs import token_logprobs

    num, vocab, hidden = 8192, 49152, 64
    states = torch.randn(num, hidden, requires_grad=True)
    weight = torch.randn(vocab, hidden, requires_grad=True)
    targets, ones = torch.randint(vocab, (num,)), torch.ones(num)
    token_logprobs(states[:1], weight, targets[:1], ones[:1])[0].sum().backward()
    before = peak_bytes()
    logp, entropy = token_logprobs(states, weight, targets, ones)
    (logp.sum() + entropy.sum()).backward()
    return (peak_bytes() - before) / (4 * num * vocab)


def child(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    if options.side == "head":
        print(json.dumps(head_share()), flush=True)
        return
    step = {"ours": ours, "plain": plain}[options.side](options)
    step()
    left, right = torch.randn(2, 1024, 1024)
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "gemm\n":
            began = process_cpu_s()
            for _ in range(10):
                left @ right
            print(json.dumps(10 * 2 * 1024**3 / (process_cpu_s() - began)), flush=True)
            continue
        began = process_cpu_s(), stopwatch()
        num = step()
        spent = process_cpu_s() - began[0], stopwatch() - began[1]
        print(json.dumps([*spent, num, peak_bytes()]), flush=True)


class Side:
    """A child that takes a step when it is told to."""

    def __init__(self, side: str, setting: str, folder: str, options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--side", side, "--side-of", setting, "--folder", folder]
        command += ["--threads", str(options.threads)]
        command += ["--model", options.model] if options.model else []
        command += ["--small"] if options.small else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.steps: list[list[float]] = []
        self._answer()

    def step(self) -> None:
        self.steps.append(json.loads(self._ask("step")))

    def gemm(self) -> float:
        return json.loads(self._ask("gemm"))

    def close(self) -> None:
        self._process.communicate()

    @property
    def cpu_s(self) -> float:
        return median(step[0] for step in self.steps)

    @property
    def wall_s(self) -> float:
        return median(step[1] for step in self.steps)

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a side of the benchmark ended with code {self._process.wait()}")
        return line


def flops(facts: Any, setting: str, positions: int, predicted: int, pairs: float) -> float:
    """Return the FLOPs of a step: layers at positions, output layer where predicted, attention by pairs."""
    full = setting.startswith("full")
    head = facts.vocab * facts.hidden
    layers = facts.linear_params - head
    factors = 0 if full else 6 * facts.lora_params(16)
    base = (6 if full else 4) * (layers * positions + head * predicted)
    return base + factors * positions + 12 * facts.num_layers * facts.num_heads * facts.head_dim * pairs


def measure(setting: str, options: argparse.Namespace, facts: Any) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(name, setting, folder, options) for name in ("ours", "plain")}
        peaks: list[float] = []
        for _ in range(options.rounds):
            for side in sides.values():
                side.step()
            peaks.append(sides["ours"].gemm())
        for side in sides.values():
            side.close()
    peak = median(peaks)
    prompt, answers = (512 if setting.endswith("long") else 64), 64
    useful = GROUP * (prompt + answers)
    apart = GROUP * (prompt + answers) * (prompt + answers + 1) / 2
    shared = prompt * (prompt + 1) / 2 + GROUP * (answers * prompt + answers * (answers + 1) / 2)
    found: dict[str, float] = {"peak_gflops": round(peak / 1e9, 1)}
    for name, side in sides.items():
        computed = int(side.steps[-1][2])
        predicted = GROUP * answers if name == "ours" else computed
        work = flops(facts, setting, computed, predicted, shared if name == "ours" else apart)
        found[f"{name}.tokens_per_cpu_s"] = round(useful / side.cpu_s, 1)
        found[f"{name}.positions_per_cpu_s"] = round(computed / side.cpu_s, 1)
        found[f"{name}.tokens_per_s"] = round(useful / side.wall_s, 1)
        found[f"{name}.mfu"] = round(work / side.cpu_s / peak, 3)
        found[f"{name}.peak_mib"] = round(side.steps[-1][3] / 2**20)
    found["ratio"] = round(sides["plain"].cpu_s / sides["ours"].cpu_s, 2)
    found["memory_ratio"] = round(found["ours.peak_mib"] / found["plain.peak_mib"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory of a checkpoint")
    parser.add_argument("--small", action="store_true", help="a model of 0.6M parameters, for a quick try")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=SETTINGS, help="settings; may be given again")
    parser.add_argument("--side", choices=("ours", "plain", "head"), help=argparse.SUPPRESS)
    parser.add_argument("--side-of", default="lora.short", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        child(options)
        return
    with torch.device("meta"):
        config = make_model(options).config
    facts = model_shape(config.to_dict()).facts()
    print(
        f"MFU: {MFU_CONVENTION}; peak: torch's f32 matrix product here, {options.threads} threads, CPU time"
    )
    print(f"{'':11} {'useful tokens/CPU s':>22} {'positions/CPU s':>17} {'MFU':>13} {'peak MiB':>13}")
    result: dict[str, object] = {"threads": options.threads, "rounds": options.rounds, "small": options.small}
    for setting in options.only or SETTINGS:
        found = measure(setting, options, facts)
        pairs = [
            f"{found[f'ours.{key}']:g} {found[f'plain.{key}']:g}"
            for key in ("tokens_per_cpu_s", "positions_per_cpu_s", "mfu", "peak_mib")
        ]
        print(
            f"{setting:11} {pairs[0]:>22} {pairs[1]:>17} {pairs[2]:>13} {pairs[3]:>13}  "
            f"ratio {found['ratio']}, memory {found['memory_ratio']}",
            flush=True,
        )
        result |= {f"{setting}.{key}": value for key, value in found.items()}
    command = [sys.executable, __file__, "--side", "head"]
    share = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    result["head.memory_share"] = round(share, 3)
    print(f"log-probs of 8192 tokens add {share:.0%} of tokens x vocabulary to the peak")
    if share >= 0.25:
        raise SystemExit("log-probs hold tokens x vocabulary: trainer/logprobs.py")
    keep("trainer", result)


if __name__ == "__main__":
    main()
