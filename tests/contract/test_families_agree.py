"""Generator, trainer and transformers compute the same thing for each family, before and after an update."""

import asyncio
from array import array
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Row
from headway.core.errors import UserError
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import ROUTED_EXPERTS, TrainingSample
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.load import load_state
from headway.models.tiny import write_tokenizer
from headway.trainer.local import LocalTrainer
from headway.trainer.settings import TrainerSettings
from headway.weights.read import WeightReader
from tests.contract.engine_contract import collect_all, request
from tests.unit.family_models import FAMILIES, make_model

PROMPT = list(range(40, 57))


@pytest.fixture
def checkpoint(request, tmp_path):
    path = tmp_path / "model"
    make_model(request.param, vocab_size=259).save_pretrained(path)
    write_tokenizer(path)
    return path


def make_engine(path):
    shape, state = load_state(path)
    settings = GeneratorSettings(max_running=4, max_context_tokens=64, threads=1, prefill_chunk_tokens=8)
    read = WeightReader(state).read
    return EmbeddedEngine(state, shape, settings, replica="r0", decode_text=None, read_weights=read)


async def sampled(engine, tag, count=6, streams=()):
    """Ragged answers to one prompt."""
    items = []
    for index in range(count):
        item = request(f"{tag}{index}", PROMPT, group=tag, seed=index, max_tokens=4 + 3 * index)
        items.append(replace(item, streams=streams))
    return await collect_all(engine, items)


def rows_of(answers, folder, tag):
    writer = PayloadWriter(folder, tag)
    rows = []
    for index, answer in enumerate(answers):
        n, m = len(PROMPT), len(answer.token_ids)
        sample = TrainingSample(
            array("i", PROMPT) + answer.token_ids,
            array("b", [0] * n + [1] * m),
            array("f", [0.0] * n) + answer.logprobs,
            list(answer.spans),
            1.0,
            dict(answer.streams),
        )
        reference = writer.append(Payload(f"{tag}{index}", "t", [sample], {}))
        rows.append(Row(f"{tag}{index}", "g", reference, float(index % 2 * 2 - 1)))
    return rows


def largest_gap(trainer, rows, answers):
    found = trainer.forward(rows)
    gaps = [
        (logp[0] - torch.tensor(answer.logprobs)).abs().max().item()
        for logp, answer in zip(found, answers, strict=True)
    ]
    return max(gaps)


async def greedy(engine, tag):
    items = [
        request(f"{tag}{index}", PROMPT[: 5 + index], temperature=0.0, max_tokens=20) for index in range(3)
    ]
    return [list(answer.token_ids) for answer in await collect_all(engine, items)]


def transformers_greedy(model):
    wanted = []
    for index in range(3):
        prompt = torch.tensor([PROMPT[: 5 + index]])
        settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        wanted.append(model.generate(prompt, **settings)[0, prompt.shape[1] :].tolist())
    return wanted


def saved_model(path, saved):
    """What transformers, or peft, loads from a checkpoint of the trainer."""
    if (saved / "model").is_dir():
        return AutoModelForCausalLM.from_pretrained(saved / "model", dtype=torch.float32).eval()
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return PeftModel.from_pretrained(base, saved / "adapter").merge_and_unload().eval()


@pytest.mark.parametrize("full", [False, True], ids=["lora", "full"])
@pytest.mark.parametrize("checkpoint", FAMILIES, indirect=True, ids=str)
async def test_they_agree_before_and_after_an_update(checkpoint, full, tmp_path):
    torch.set_num_threads(1)
    trainer = LocalTrainer(
        checkpoint,
        TrainerSettings(full=full, learning_rate=2e-2, lora_rank=4),
        AlgorithmSettings(),
        payload_dir=tmp_path / "payloads",
        weights_dir=tmp_path / "weights",
        checkpoint_dir=tmp_path / "checkpoints",
    )
    engine = make_engine(checkpoint)
    try:
        base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        first = await greedy(engine, "a")
        assert first == transformers_greedy(base)
        has_experts = "num_experts" in base.config.to_dict()
        streams = (ROUTED_EXPERTS,) if has_experts else ()
        answers = await sampled(engine, "s", streams=streams)
        rows = rows_of(answers, tmp_path / "payloads", "before")
        assert largest_gap(trainer, rows, answers) < 1e-4
        result = await asyncio.to_thread(trainer.step, rows)
        assert result.metrics["mismatch_max"] < 1e-4

        manifest, _ = trainer.publish(0, 1)
        await engine.apply(0, 1, manifest, "recompute")
        second = await greedy(engine, "b")
        assert second != first
        saved = tmp_path / "checkpoints" / "step-000001"
        trainer.save(1)
        assert second == transformers_greedy(saved_model(checkpoint, saved))
        answers = await sampled(engine, "t", streams=streams)
        rows = rows_of(answers, tmp_path / "payloads", "after")
        assert largest_gap(trainer, rows, answers) < 1e-4
    finally:
        await engine.close()


@pytest.mark.parametrize("checkpoint", FAMILIES, indirect=True, ids=str)
def test_full_training_goes_on_from_its_checkpoint(checkpoint, tmp_path):
    settings = TrainerSettings(full=True)
    folders = {
        "payload_dir": tmp_path / "payloads",
        "weights_dir": tmp_path / "weights",
        "checkpoint_dir": tmp_path / "checkpoints",
    }
    trainer = LocalTrainer(checkpoint, settings, AlgorithmSettings(), **folders)
    path = trainer.save(0)
    parameters = trainer._policy.trainable()
    wanted = {name: parameter.clone() for name, parameter in parameters.items()}
    other = LocalTrainer(make_model("llama"), settings, AlgorithmSettings(), **folders)
    with pytest.raises(UserError, match="must fit the model"):
        other.load(path)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.zero_()
    trainer.load(path)
    assert all(torch.equal(parameter, wanted[name]) for name, parameter in parameters.items())
