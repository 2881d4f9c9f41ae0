"""One side of benchmarks/engine.py in a process of its own.

    python benchmarks/engine_side.py headway|transformers MODEL THREADS CONTEXT

Reads one job a line, a JSON object, and answers with one line: seconds, CPU seconds of all threads, and the
peak of the resident set during the job. It ends with its input. It prints `ready` once the model is loaded.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from pathlib import Path
from typing import Any

import torch

from headway.core.clock import process_cpu_s, stopwatch
from headway.core.protocols import GenerateRequest, Sampling
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.load import load_causal_lm, load_state

GROUP = 8
MAX_RUNNING = 64


class Headway:
    """The embedded engine with its default settings, and room for `context` tokens a request."""

    def __init__(self, model: Path, threads: int, context: int) -> None:
        shape, state = load_state(model)
        self._number = 0
        self._state = state
        self._engine = EmbeddedEngine(
            state,
            shape,
            GeneratorSettings(threads=threads, max_running=MAX_RUNNING, max_context_tokens=context),
            replica="bench",
            decode_text=None,
            read_weights=lambda _: self._state.items(),
        )

    async def generate(self, job: dict[str, Any]) -> None:
        """Answer all prompts; raises RuntimeError when an answer is too short."""
        sizes = await asyncio.gather(*(self._one(job, index) for index in range(len(job["prompts"]))))
        if sizes != job["lengths"]:
            raise RuntimeError("the engine stopped early")

    async def swap(self, job: dict[str, Any]) -> float:
        """Return the pause, seconds, of taking up all weights anew while every request decodes."""
        started = [asyncio.Event() for _ in job["prompts"]]
        running = asyncio.gather(
            *(self._one(job, index, started[index]) for index in range(len(started))), return_exceptions=True
        )
        for event in started:
            await event.wait()
        self._number += 1
        pause = await self._engine.apply(0, self._number, "", job["kv"])
        await self._engine.abort(None)
        await running
        return pause

    async def _one(self, job: dict[str, Any], index: int, started: asyncio.Event | None = None) -> int:
        name = f"{job['name']}.{index}"
        sampling = Sampling(job["lengths"][index], seed=index)
        prompt = array("i", job["prompts"][index])
        request = GenerateRequest(name, name, f"{job['name']}/{index // GROUP}", "policy", prompt, sampling)
        size = 0
        async for chunk in self._engine.generate(request):
            size += len(chunk.token_ids)
            if started is not None:
                started.set()
        await self._engine.end_session(name)
        return size

    async def close(self) -> None:
        """Free the engine."""
        await self._engine.close()


class Transformers:
    """transformers' generate on all prompts at once, to the longest answer; no log-probs."""

    def __init__(self, model: Path, threads: int, context: int) -> None:
        torch.set_num_threads(threads)
        self._model = load_causal_lm(model)
        self._model.generation_config.eos_token_id = None

    async def generate(self, job: dict[str, Any]) -> None:
        """Answer all prompts."""
        prompts = torch.tensor(job["prompts"])
        length = max(job["lengths"])
        mask = torch.ones_like(prompts)
        lengths = {"min_new_tokens": length, "max_new_tokens": length}
        found = self._model.generate(
            prompts, attention_mask=mask, do_sample=True, top_k=0, pad_token_id=0, **lengths
        )
        if found.shape[1] != prompts.shape[1] + length:
            raise RuntimeError("transformers stopped early")

    async def close(self) -> None:
        """There is nothing to free."""


def reset_peak() -> None:
    """Forget the peak of the resident set; Linux alone."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak of the resident set since it was last reset; Linux alone."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


async def serve(side: Headway | Transformers) -> None:
    """Do jobs until there are no more."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = json.loads(line)
        reset_peak()
        began, cpu = stopwatch(), process_cpu_s()
        pause = None
        if "kv" in job:
            assert isinstance(side, Headway)
            pause = await side.swap(job)
        else:
            await side.generate(job)
        told = {
            "s": stopwatch() - began,
            "cpu_s": process_cpu_s() - cpu,
            "peak": peak_bytes(),
            "pause": pause,
        }
        print(json.dumps(told), flush=True)
    await side.close()


if __name__ == "__main__":
    kind = {"headway": Headway, "transformers": Transformers}[sys.argv[1]]
    asyncio.run(serve(kind(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
