"""TRL's synchronous GRPOTrainer on one scene of benchmarks/loop.py; started by it, one process a run.

Reads one JSON object from the command line and prints one as its last line: the times at which optimizer
steps ended, seconds since the process began to load, and the mean reward of each step.

It is run as fast as it goes on CPU cores: f32, all rows of a step generated in one batch, no reference model
(beta 0), one pass over the samples (so that it need not recompute log-probs of the sampling policy), no
checkpointing of activations, no progress bar, nothing saved or reported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from letters.environment import letter_share

from headway.core.clock import stopwatch


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Run and return what it took."""
    began = stopwatch()
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(job["threads"])
    rewards: list[float] = []
    lengths: set[int] = set()
    ends: list[float] = []

    def reward(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any) -> Any:
        found = [letter_share(text) for text in completions]
        rewards.append(fmean(found))
        lengths.update(map(len, completion_ids))
        return found

    class Times(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(stopwatch() - began)

    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    model.config.use_cache = True
    parts = job["batch"] // job["rows"]
    settings = GRPOConfig(
        output_dir=job["output"],
        seed=job["seed"],
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        shuffle_dataset=False,
        max_steps=job["steps"],
        per_device_train_batch_size=job["rows"],
        gradient_accumulation_steps=parts,
        steps_per_generation=parts,
        num_generations=job["group"],
        num_iterations=1,
        beta=0.0,
        max_completion_length=job["answer_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type="dapo",  # the mean over all tokens of the batch, as Headway's default
        scale_rewards="group",
        epsilon=0.2,
        learning_rate=job["rate"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
    )
    lora = LoraConfig(
        r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(job["model"], padding_side="left"),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": json.loads(Path(job["prompts"]).read_text())}),
        peft_config=None if job["full"] else lora,
        callbacks=[Times()],
    )
    ready = stopwatch() - began
    if job["lead"] == 0:
        ends.append(ready)  # the first step counts
    trainer.train()
    if job["fixed_length"] and lengths != {job["answer_tokens"]}:
        raise SystemExit(f"answers must have {job['answer_tokens']} tokens, they had {sorted(lengths)}")
    return {"ends": ends, "ready_s": ready, "rewards": rewards}


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
