"""Is everything right on this machine's accelerator? Engine and trainer, against transformers and the CPU.

    python benchmarks/device_check.py [--device cuda] [--model DIRECTORY]

Without a model a small random Llama is used. Checks, each in f32:

- engine.logprobs: log-probs of sampled tokens equal transformers' on the CPU.
- engine.greedy: greedy answers, many at once, equal transformers' on the same device token for token.
- engine.swap: after other weights were taken up in the middle of answers, greedy answers are theirs.
- trainer.gradient: the gradient of one batch equals the CPU's.
- trainer.step: an optimizer step leaves finite weights, which differ from those before.

The last line is one JSON object: whether each check held, the figure that it was judged by, seconds, and peak
memory. The exit code is 1 when a check failed or could not be made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import traceback
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from headway.algorithms.settings import AlgorithmSettings
from headway.core.clock import stopwatch
from headway.core.commands import Row
from headway.core.payload import Payload, PayloadWriter
from headway.core.protocols import GenerateRequest, Sampling
from headway.core.records import TrainingSample, VersionSpan
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.shape import model_shape
from headway.trainer.local import LocalTrainer
from headway.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM, PROMPT, ANSWER = 16, 24, 24  # requests, prompt tokens, answer tokens
LOGPROB_TOLERANCE = 2e-3  # nats; matrix products of another device are summed in another order
GRADIENT_TOLERANCE = 1e-3  # of the gradient's norm
Found = tuple[bool, float]  # whether it held, and the figure it was judged by


class Subject:
    """The models that are compared, and prompts for them."""

    def __init__(self, device: torch.device, directory: str | None) -> None:
        torch.manual_seed(0)
        self.device = device
        self.cpu = self._model(directory).eval()
        self.model = self._model(directory).to(device).eval()
        self.model.load_state_dict(self.cpu.state_dict())
        self.shape = model_shape(self.cpu.config.to_dict())
        torch.manual_seed(1)
        self.prompts = torch.randint(3, self.shape.vocab, (NUM, PROMPT))

    def _model(self, directory: str | None) -> Any:
        if directory is not None:
            return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        config = LlamaConfig(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
            initializer_range=0.1, pad_token_id=None,
        )  # fmt: skip
        return LlamaForCausalLM(config)

    def greedy(self) -> list[list[int]]:
        """Return transformers' answers on the device."""
        self.model.generation_config.eos_token_id = None
        prompts = self.prompts.to(self.device)
        sizes = {"min_new_tokens": ANSWER, "max_new_tokens": ANSWER}
        mask = torch.ones_like(prompts)
        found = self.model.generate(prompts, attention_mask=mask, do_sample=False, pad_token_id=0, **sizes)
        return found[:, PROMPT:].tolist()

    def perturb(self) -> None:
        """Change all weights a little, on both devices alike."""
        torch.manual_seed(2)
        with torch.no_grad():
            for ours, theirs in zip(self.cpu.parameters(), self.model.parameters(), strict=True):
                ours.add_(0.02 * torch.randn_like(ours))
                theirs.copy_(ours)


class Answered:
    """All prompts through an engine at once."""

    def __init__(self, engine: EmbeddedEngine, subject: Subject) -> None:
        self._engine = engine
        self._subject = subject

    async def all(self, tag: str, temperature: float) -> tuple[list[list[int]], list[list[float]]]:
        """Return token ids and log-probs of each answer."""
        found = await asyncio.gather(
            *(self._one(f"{tag}{index}", index, temperature) for index in range(NUM))
        )
        return [ids for ids, _ in found], [logprobs for _, logprobs in found]

    async def _one(self, name: str, index: int, temperature: float) -> tuple[list[int], list[float]]:
        prompt = array("i", self._subject.prompts[index].tolist())
        sampling = Sampling(ANSWER, temperature=temperature, seed=index)
        ids: list[int] = []
        logprobs: list[float] = []
        async for chunk in self._engine.generate(
            GenerateRequest(name, name, name, "policy", prompt, sampling)
        ):
            ids += chunk.token_ids
            logprobs += chunk.logprobs
        await self._engine.end_session(name)
        return ids, logprobs


async def engine_checks(subject: Subject) -> dict[str, Callable[[], Found]]:
    """Run the engine, and return the checks of what it gave."""
    engine = EmbeddedEngine(
        subject.model,
        subject.shape,
        GeneratorSettings(max_running=NUM, max_context_tokens=PROMPT + ANSWER),
        replica="check",
        decode_text=None,
        read_weights=lambda _: subject.model.state_dict().items(),
    )
    try:
        answered = Answered(engine, subject)
        greedy, expected = (await answered.all("greedy", 0.0))[0], subject.greedy()
        sampled, logprobs = await answered.all("sampled", 1.0)
        with torch.no_grad():
            whole = torch.cat([subject.prompts, torch.tensor(sampled)], 1)
            logits = subject.cpu(whole[:, :-1]).logits[:, PROMPT - 1 :].log_softmax(-1)
        reference = logits.gather(2, whole[:, PROMPT:, None]).squeeze(2)
        worst = float((reference - torch.tensor(logprobs)).abs().max())
        running = asyncio.gather(*(answered.all(f"during{kv}", 1.0) for kv in ("keep", "recompute")))
        await asyncio.sleep(0)
        subject.perturb()
        await engine.apply(0, 1, "", "keep")
        await engine.apply(0, 2, "", "recompute")
        await running
        swapped, expected_after = (await answered.all("after", 0.0))[0], subject.greedy()
    finally:
        await engine.close()
    return {
        "engine.logprobs": lambda: (worst < LOGPROB_TOLERANCE, worst),
        "engine.greedy": lambda: equal_answers(greedy, expected),
        "engine.swap": lambda: equal_answers(swapped, expected_after),
    }


def equal_answers(found: list[list[int]], expected: list[list[int]]) -> Found:
    """Say whether all answers are equal, and what share of them is."""
    share = sum(ours == theirs for ours, theirs in zip(found, expected, strict=True)) / len(expected)
    return share == 1.0, share


def trainer_checks(subject: Subject, folder: Path) -> dict[str, Callable[[], Found]]:
    """Return the checks of the trainer."""
    writer = PayloadWriter(folder / "payloads", "check")
    torch.manual_seed(3)
    answers = torch.randint(3, subject.shape.vocab, (NUM, ANSWER))
    rows: list[Row] = []
    for index in range(NUM):
        ids = array("i", [*subject.prompts[index // 4 * 4].tolist(), *answers[index].tolist()])
        mask = array("b", [0] * PROMPT + [1] * ANSWER)
        logprobs = array("f", [0.0] * PROMPT + [-6.0] * ANSWER)
        sample = TrainingSample(ids, mask, logprobs, [VersionSpan(0, 0, ANSWER)], 1.0)
        reference = writer.append(Payload(f"r{index}", "t", [sample], {}))
        rows.append(Row(f"r{index}", f"g{index // 4}", reference, 1.0 if index % 2 else -1.0))

    def trainer(name: str, model: Any) -> LocalTrainer:
        settings = TrainerSettings(full=True, learning_rate=1e-3)
        places = {"weights_dir": folder / name / "weights", "checkpoint_dir": folder / name / "checkpoints"}
        return LocalTrainer(model, settings, AlgorithmSettings(), payload_dir=folder / "payloads", **places)

    def gradient(of: LocalTrainer) -> dict[str, torch.Tensor]:
        of.forward_backward(rows, of.batch_wide(rows))
        return {name: tensor.detach().cpu().clone() for name, tensor in of.gradients().items()}

    def same_gradient() -> Found:
        expected, found = gradient(trainer("cpu", subject.cpu)), gradient(trainer("device", subject.model))
        distance = sum(float((found[name] - tensor).square().sum()) for name, tensor in expected.items())
        size = sum(float(tensor.square().sum()) for tensor in expected.values())
        error = (distance / size) ** 0.5
        return error < GRADIENT_TOLERANCE, error

    def one_step() -> Found:
        before = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
        result = trainer("step", subject.model).step(rows)
        after = subject.model.state_dict()
        moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
        return finite and moved > 0 and result.num_trained_tokens == NUM * ANSWER, moved

    return {"trainer.gradient": same_gradient, "trainer.step": one_step}


def run(checks: Callable[[], dict[str, Callable[[], Found]]], names: Sequence[str]) -> dict[str, Any]:
    """Make some checks; one that raises has failed, and those that it kept from being made too."""
    found: dict[str, Any] = {}
    try:
        for name, check in checks().items():
            held, figure = check()
            found[name], found[f"{name}.figure"] = held, figure
    except Exception:  # whatever a device may raise: it is told, and the exit code says that it failed
        traceback.print_exc()
    return {**dict.fromkeys(names, False), **found}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", help="a checkpoint directory")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print, and return the exit code."""
    options = parse(arguments)
    began = stopwatch()
    device = torch.device(options.device)
    # Products in TF32 are three decimal digits: too few to compare by.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    subject = Subject(device, options.model)
    engine = ("engine.logprobs", "engine.greedy", "engine.swap")
    result = run(lambda: asyncio.run(engine_checks(subject)), engine)
    with tempfile.TemporaryDirectory(prefix="headway-check-") as folder:
        names = ("trainer.gradient", "trainer.step")
        result |= run(lambda: trainer_checks(subject, Path(folder)), names)
    held = all(result[name] for name in (*engine, *names))
    result |= {"device": str(device), "ok": held, "seconds": round(stopwatch() - began, 2)}
    result["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if device.type == "cuda":
        result["device_name"] = torch.cuda.get_device_name(device)
        result["peak_device_mib"] = torch.cuda.max_memory_allocated(device) // 2**20
    print(json.dumps(result))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
