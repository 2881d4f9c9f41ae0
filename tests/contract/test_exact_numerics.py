"""With exact numerics the trainer finds the generator's log-probs again, to the last bit."""

import asyncio
from array import array
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.algorithms.settings import AlgorithmSettings
from headway.core.commands import Row
from headway.core.errors import HeadwayError
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


@pytest.fixture(scope="module", params=[(family, full) for family in FAMILIES for full in (False, True)], ids=str)
def versions(request, tmp_path_factory):
    """A family's model, settings, and the manifests of seven versions of it."""
    family, full = request.param
    trainer = TrainerSettings(full=full, lora_rank=4)
    folder = tmp_path_factory.mktemp("versions")
    manifests = []
    for number in range(7):
        torch.manual_seed(number)
        policy = ExactPolicy(make_model(family), trainer, 0, CONTEXT)
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
        return make_engine(make_model(family), trainer)

    def manifest(self, number):
        return self.versions[2][number]
