"""A tiny random Llama and payload files to train on."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Row
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import TrainingSample, TurnSpan, VersionSpan
from headway.trainer.local import LocalTrainer
from headway.trainer.settings import TrainerSettings

VOCAB = 48


def tiny_llama(dtype=torch.float32, seed=0, tied=True):
    """A Llama of 2 layers; in float64 its norms are float64 too (transformers' own always take float32)."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        attn_implementation="sdpa",
        initializer_range=0.3,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).to(dtype)
    if dtype == torch.float64:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if "RMSNorm" in type(child).__name__:
                    norm = torch.nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)
                    setattr(parent, name, norm)
    return model.eval()


def sample(ids, mask, logprobs=None, *, temperature=1.0, spans=None, turns=()):
    """A training sample; log-probs default to -1.5, spans to version (0, 0)."""
    logprobs = [-1.5 * flag for flag in mask] if logprobs is None else logprobs
    spans = [VersionSpan(0, 0, sum(mask))] if spans is None else spans
    arrays = array("i", ids), array("b", mask), array("f", logprobs)
    return TrainingSample(*arrays, spans, temperature, turns=[TurnSpan(*turn) for turn in turns])


def rollout_sample(prompt, answer, **kwargs):
    """A sample that trains the whole answer."""
    return sample(prompt + answer, [0] * len(prompt) + [1] * len(answer), **kwargs)


@dataclass
class Bench:
    """Directories, payloads and trainers of one test."""

    root: object
    writer: PayloadWriter
    names: object = field(default_factory=itertools.count)

    def row(self, samples, advantage=1.0, group="g", **more):
        name = f"r{next(self.names)}"
        reference = self.writer.append(Payload(name, "t", list(samples), {}))
        return Row(name, group, reference, advantage, **more)

    def trainer(self, model=None, *, algorithm=None, folder="run", seed=0, keep_checkpoints=3, **settings):
        return LocalTrainer(
            tiny_llama() if model is None else model,
            TrainerSettings(**settings),
            algorithm or AlgorithmSettings(),
            payload_dir=self.root / "payloads",
            weights_dir=self.root / folder / "weights",
            checkpoint_dir=self.root / folder / "checkpoints",
            seed=seed,
            keep_checkpoints=keep_checkpoints,
        )

    def groups(self, num_groups=3, size=4, seed=1, temperature=1.0):
        """Rows of groups with shared prompts and ragged answers, advantages that sum to zero."""
        rng = torch.Generator().manual_seed(seed)

        def ids(num):
            return torch.randint(1, VOCAB, (num,), generator=rng).tolist()

        rows = []
        for index in range(num_groups):
            prompt = ids(5 + index)
            for member in range(size):
                answer = ids(2 + (3 * member + index) % 7)
                logprobs = [0.0] * len(prompt) + [-0.5 - 0.3 * (i % 9) for i in range(len(answer))]
                chosen = rollout_sample(prompt, answer, logprobs=logprobs, temperature=temperature)
                rows.append(self.row([chosen], advantage=member - (size - 1) / 2, group=f"g{index}"))
        return rows


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path, PayloadWriter(tmp_path / "payloads", "p0"))


@pytest.fixture
def make_model():
    return tiny_llama


@pytest.fixture
def make_sample():
    return sample


@pytest.fixture
def make_rollout():
    return rollout_sample
