"""With exact numerics the trainer finds the generator's log-probs again, to the last bit."""

import asyncio
from array import array
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Row
from headway.core.errors import EngineError, HeadwayError
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import ROUTED_EXPERTS, TrainingSample
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.shape import model_shape
from headway.trainer.exact import ExactPolicy
from headway.trainer.local import LocalTrainer
from headway.trainer.settings import TrainerSettings
from headway.weights.publish import write_adapter, write_full
from tests.contract.engine_contract import EngineContract, collect_all, request
from tests.unit.family_models import FAMILIES, VOCAB, make_model

CONTEXT = 64


def nothing(manifest):
    raise AssertionError(manifest)


def make_engine(model, trainer, context=CONTEXT, **options):
    """An engine that computes as a trainer of these settings does."""
    torch.set_num_threads(1)
    given = {"max_running": 4, "max_context_tokens": context, "threads": 1, "numerics": "exact"} | options
    return EmbeddedEngine(
        {},
        model_shape(model.config.to_dict()),
        GeneratorSettings(**given),
        replica="r0",
        decode_text=None,
        read_weights=nothing,
        exact=ExactPolicy(model, trainer, 0, context),
    )


def make_trainer(model, trainer, folder, context=CONTEXT):
    torch.set_num_threads(1)
    return LocalTrainer(
        model,
        trainer,
        AlgorithmSettings(),
        payload_dir=folder / "payloads",
        weights_dir=folder / "weights",
        checkpoint_dir=folder / "checkpoints",
        exact_context_tokens=context,
    )


ALL = [*((family, False) for family in FAMILIES), ("llama", True)]
# test_the_trainer_finds_the_generators_bits has every family, and the fast engine's contract too
BETWEEN = [("qwen2", False), ("qwen3", False)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[pytest.mark.slow] if one in BETWEEN else []) for one in ALL],
    ids=str,
)
def versions(request, tmp_path_factory):
    """A family's model, settings, and the manifests of seven versions of it."""
    family, full = request.param
    trainer = TrainerSettings(full=full, lora_rank=4)
    folder = tmp_path_factory.mktemp("versions")
    manifests = []
    for number in range(7):
        torch.manual_seed(number)
        policy = ExactPolicy(make_model(family, num_hidden_layers=1), trainer, 0, CONTEXT)
        tensors = {name: value + 0.05 * torch.randn_like(value) for name, value in policy.published().items()}
        if full:
            path = write_full(folder, 0, number, tensors, keep=7)
        else:
            path = write_adapter(folder, 0, number, tensors, rank=4, alpha=32.0, keep=7)
        manifests.append(str(path))
    return family, trainer, manifests


class TestExactEngine(EngineContract):
    context = CONTEXT

    @pytest.fixture(autouse=True)
    def _versions(self, versions):
        self.versions = versions

    async def make_engine(self):
        family, trainer, _ = self.versions
        return make_engine(make_model(family, num_hidden_layers=1), trainer)

    def manifest(self, number):
        return self.versions[2][number]


async def answered(engine, tag, prompts, temperature, streams=()):
    items = [
        replace(
            request(f"{tag}{index}", prompt, seed=index, max_tokens=3 + 4 * index, temperature=temperature),
            streams=streams,
        )
        for index, prompt in enumerate(prompts)
    ]
    return await collect_all(engine, items)


def rows_of(prompts, answers, temperature, folder, tag):
    writer = PayloadWriter(folder / "payloads", tag)
    rows = []
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        n, m = len(prompt), len(answer.token_ids)
        sample = TrainingSample(
            array("i", prompt) + answer.token_ids,
            array("b", [0] * n + [1] * m),
            array("f", [0.0] * n) + answer.logprobs,
            list(answer.spans),
            temperature,
        )
        name = f"{tag}{index}"
        rows.append(Row(name, "g", writer.append(Payload(name, "t", [sample], {})), float(index % 2 * 2 - 1)))
    return rows


async def check(model, trainer, context, prompts, temperature, folder):
    """Sample, train and sample again from the published version; every log-prob is found again."""
    learner = make_trainer(model(), trainer, folder, context)
    engine = make_engine(model(), trainer, context)
    try:
        for number in range(3):
            answers = await answered(engine, f"v{number}.", prompts, temperature)
            rows = rows_of(prompts, answers, temperature, folder, f"v{number}.")
            found = learner.forward(rows)
            for logp, answer in zip(found, answers, strict=True):
                assert answer.spans == ((0, number, len(answer.token_ids)),)
                assert torch.equal(logp[0], torch.tensor(answer.logprobs))
            metrics = (await asyncio.to_thread(learner.step, rows)).metrics
            assert metrics["mismatch_mean"] == metrics["mismatch_max"] == metrics["mismatch_kl"] == 0.0
            assert metrics["ratio_mean"] == metrics["ratio_max"] == 1.0
            assert metrics["num_fresh_tokens"] == sum(len(answer.token_ids) for answer in answers)
            assert metrics["grad_norm"] > 0
            manifest, _ = learner.publish(0, number + 1)
            await engine.apply(0, number + 1, manifest, "keep")
    finally:
        await engine.close()


ragged = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=4)


@pytest.mark.parametrize("full", [False, True], ids=["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.7, 1.0, 1.3]),
    prompts=ragged,
    checkpointing=st.booleans(),
)
def test_the_trainer_finds_the_generators_bits(
    family, full, seed, temperature, prompts, checkpointing, tmp_path_factory
):
    trainer = TrainerSettings(
        full=full, lora_rank=3, learning_rate=2e-2, gradient_checkpointing=checkpointing
    )
    folder = tmp_path_factory.mktemp("run")
    asyncio.run(check(lambda: make_model(family, seed), trainer, CONTEXT, prompts, temperature, folder))


def test_a_long_context_takes_several_chunks_of_the_output_layer(tmp_path):
    prompts = [[*range(90)] * 3, [*range(50)] * 5, [3], [*range(60)] * 4]  # 270, 250 to 265, 1, 240 tokens
    model = lambda: make_model("llama", max_position_embeddings=300)  # noqa: E731
    asyncio.run(check(model, TrainerSettings(lora_rank=4), 300, prompts, 0.7, tmp_path))


async def test_greedy_and_truncated_answers_are_drawn_as_ever(tmp_path):
    model = make_model("qwen2")
    prompt = torch.tensor([[5, 9, 3]])
    wanted = model.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    engine = make_engine(model, TrainerSettings(full=True))
    try:
        items = [
            request("greedy", [5, 9, 3], temperature=0.0, max_tokens=20),
            request("top_k", [5, 9, 3], temperature=2.0, top_k=1, max_tokens=20),
        ]
        for answer in await collect_all(engine, items):
            assert list(answer.token_ids) == wanted[0, 3:].tolist()
        assert list(answer.logprobs) == [0.0] * 20
    finally:
        await engine.close()


async def test_adapters_beside_the_policy_are_refused():
    engine = make_engine(make_model(), TrainerSettings())
    try:
        assert engine.capabilities().max_adapters == 0
        with pytest.raises(EngineError, match="without adapters beside it"):
            await engine.load_adapter("other", 0, 1, "somewhere", "keep")
    finally:
        await engine.close()


async def test_experts_are_not_recorded(tmp_path):
    engine = make_engine(make_model("qwen3 moe"), TrainerSettings(full=True))
    try:
        (answer,) = await answered(engine, "a", [[1, 2]], 1.0, streams=(ROUTED_EXPERTS,))
        assert (answer.finish, ROUTED_EXPERTS in answer.message) == ("rejected", True)
    finally:
        await engine.close()


async def test_a_version_of_another_kind_or_model_is_refused_and_changes_nothing(versions, tmp_path):
    family, trainer, manifests = versions
    other = replace(trainer, full=not trainer.full)
    model = make_model(family, num_hidden_layers=1)
    for settings_of, context in ((other, "kind"), (replace(trainer, lora_alpha=7.0), "scaling")):
        if context == "scaling" and trainer.full:
            continue
        with pytest.raises(HeadwayError, match="kind and scaling"):
            ExactPolicy(make_model(family, num_hidden_layers=1), settings_of, 0, CONTEXT).read(manifests[0])
    with pytest.raises(HeadwayError, match="must fit the model"):
        ExactPolicy(make_model(family, num_hidden_layers=2), trainer, 0, CONTEXT).read(manifests[0])
    assert ExactPolicy(model, trainer, 0, CONTEXT).read(manifests[0])


def test_a_sequence_longer_than_the_context_is_refused(tmp_path):
    learner = make_trainer(make_model(), TrainerSettings(), tmp_path, context=4)
    sample = TrainingSample(array("i", range(9)), array("b", [0] * 8 + [1]), array("f", [-1.0] * 9), [], 1.0)
    sample.spans.append((0, 0, 1))
    reference = PayloadWriter(tmp_path / "payloads", "long").append(Payload("long", "t", [sample], {}))
    with pytest.raises(HeadwayError, match="rollout long must fit 4 tokens"):
        learner.forward([Row("long", "g", reference, 1.0)])


def test_the_gradient_is_that_of_packed_rows(tmp_path):
    """With experts too: computing every expert for all positions adds zeros alone."""
    for family in ("llama", "qwen3 moe"):
        folder = tmp_path / family
        prompts = [[1, 2, 3, 4], [1, 2, 3, 4], [7, 8]]
        engine = make_engine(make_model(family), TrainerSettings(full=True))

        async def sample(engine=engine, prompts=prompts):
            try:
                return await answered(engine, "a", prompts, 1.0)
            finally:
                await engine.close()

        rows = rows_of(prompts, asyncio.run(sample()), 1.0, folder, "a")
        found = []
        for context in (CONTEXT, 0):
            learner = make_trainer(make_model(family), TrainerSettings(full=True), folder, context)
            learner.forward_backward(rows, learner.batch_wide(rows))
            found.append(learner.gradients())
        for name, gradient in found[0].items():
            torch.testing.assert_close(gradient, found[1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_threads(family):
    ExactPolicy(make_model(family), TrainerSettings(), 0, CONTEXT).check_threads(2)
    torch.set_num_threads(1)
