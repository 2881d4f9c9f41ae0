"""How near the loop comes to the smaller of its two bounds when tool calls make rollouts long-tailed.

A small model with random weights, real processes, one thread for each side. Rollouts answer three times and
wait for a tool after each answer; the waits are lognormal, so a few rollouts take many times the mean.
In turns:

- generate: nothing is trained; answers a second once the engine is full: the pure generation rate.
- sync, async, partial: the loop with bound 0, with bound 8, and with bound 8 and stragglers set aside. Each
  also tells its pure training rate: rollouts trained by the seconds that the trainer computed and published.

efficiency = rollouts trained a second of wall time / min(generation rate, training rate), after the start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from headway.core.commands import Train
from headway.core.events import Scored, StepEnded, TurnEnded, VersionPublished
from headway.models.tiny import write_tokenizer
from headway.telemetry.journal import read_journal

GENERATE_S, LOOP_S, WARM_S = 30.0, 60.0, 12.0  # seconds after the first score; the first WARM_S are left out
TURNS = 3  # answers of a rollout
START_S = 12.0  # for the processes to come up
MODES: dict[str, dict[str, object]] = {
    "sync": {"queue.bound": 0},
    "async": {"queue.bound": 8, "queue.depth": 4},
    "partial": {
        "queue.bound": 8,
        "queue.depth": 4,
        "partial.park": "update",
        "partial.after_steps": 4,
        "partial.max_late_batches": 16,
        "staleness.token": "mask",
    },
}
CONFIG = """
[model]
path = "{model}"

[environment]
name = "{environment}"
args = {{ tool_s = {tool_s}, sigma = 1.5, answer_tokens = 16 }}
rollout_timeout_s = 600

[generator]
max_running = 128
max_context_tokens = 256
max_answer_tokens = 16
threads = 1

[queue]
group_size = 8
batch_size = {batch}

[trainer]
full = true
learning_rate = 1e-6
threads = 1

[eval]
num_tasks = 0

[stop]
steps = 1000000
"""


def make_model(folder: Path) -> Path:
    """Write a Llama of random weights, 256 wide and 4 layers deep, with the tiny model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder.mkdir()
    write_tokenizer(folder)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    vocab, end = len(tokenizer), tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
        eos_token_id=end, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(config: Path, folder: Path, name: str, overrides: dict[str, object]) -> Path:
    """Run once; return the run's directory."""
    settings = [f"{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "headway", "train", str(config), f"run.dir={folder}", f"run.name={name}"]
    subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
    return folder / name


def generation_rate(run_dir: Path) -> float:
    """Return rollouts that the engine could make a second: answers a second by answers of a rollout.

    Answers tell the engine's rate as soon as it is full; a rollout's end comes much later.
    """
    times = [entry.t for entry in read_journal(run_dir).entries() if isinstance(entry.event, TurnEnded)]
    begin, end = times[0] + WARM_S, times[-1]
    return sum(begin <= t < end for t in times) / (end - begin) / TURNS


def loop_rates(run_dir: Path) -> tuple[float, float]:
    """Return rollouts trained a second of wall time, and a second of the trainer's own time."""
    rows: dict[int, int] = {}
    ends: list[tuple[int, float]] = []
    busy, first = 0.0, None
    for entry in read_journal(run_dir).entries():
        event = entry.event
        rows |= {item.step: len(item.rows) for item in entry.commands if isinstance(item, Train)}
        if isinstance(event, Scored) and first is None:
            first = entry.t
        if first is None or not first + WARM_S <= entry.t < first + LOOP_S:
            continue
        if isinstance(event, StepEnded):
            ends.append((event.step, entry.t))
            busy += event.compute_s if len(ends) > 1 else 0.0
        elif isinstance(event, VersionPublished):
            busy += event.publish_s if ends else 0.0
    trained = sum(rows[step] for step, _ in ends[1:])
    return trained / (ends[-1][1] - ends[0][1]), trained / busy


def efficiency(rounds: int = 3, tool_s: float = 0.5, batch: int = 32) -> dict[str, float]:
    """Measure all modes in turns; return medians and ratios."""
    found: dict[str, list[float]] = {}
    environment = Path(__file__).parent / "slow_tool" / "environment.py"
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as name:
        folder = Path(name)
        model = make_model(folder / "model")
        config = folder / "slow.toml"
        config.write_text(CONFIG.format(model=model, environment=environment, tool_s=tool_s, batch=batch))
        for number in range(rounds):
            pool: dict[str, object] = {"queue.batch_size": 8192, "queue.bound": 1}
            pool["queue.max_running_rollouts"] = 256
            wall = {"stop.wall_s": START_S + GENERATE_S}
            generated = run(config, folder, f"generate-{number}", pool | wall)
            generate = generation_rate(generated)
            found.setdefault("generation_per_s", []).append(generate)
            print(f"round {number + 1}, generation alone: {generate:.2f} rollouts/s", flush=True)
            for mode, overrides in MODES.items():
                wall = {"stop.wall_s": START_S + LOOP_S}
                rate, train = loop_rates(run(config, folder, f"{mode}-{number}", overrides | wall))
                bound = min(generate, train)
                found.setdefault(f"{mode}.per_s", []).append(rate)
                found.setdefault(f"{mode}.training_per_s", []).append(train)
                found.setdefault(f"{mode}.efficiency", []).append(rate / bound)
                print(
                    f"round {number + 1}, {mode}: {rate:.2f} rollouts/s of at most {bound:.2f} "
                    f"(training alone {train:.2f}): {rate / bound:.0%}",
                    flush=True,
                )
    return {f"efficiency.{key}": round(median(values), 4) for key, values in found.items()}


if __name__ == "__main__":
    print(json.dumps(efficiency(), indent=2))
