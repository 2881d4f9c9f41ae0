"""Fused functions compute what the model's own modules compute."""

import types

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from tests.unit.family_models import VARIANTS, VOCAB, make_model
from tests.unit.trainer.test_trainer_gradient import relative_gap

from headway.trainer.fused import fuse

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def adapted(variant, full):
    """Twice the same model, with factors that are not zero unless all weights are trained; one is fused."""
    found = []
    for _ in range(2):
        model = make_model(variant)
        if full:
            model.requires_grad_(True)
        else:
            dense = [] if "moe" in variant else ["gate_proj", "up_proj", "down_proj"]
            get_peft_model(model, LoraConfig(r=3, lora_alpha=5, target_modules=TARGETS + dense))
            torch.manual_seed(1)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.2)
        found.append(model)
    fuse(found[1])
    return found


def computed(model, ids):
    logp = model(input_ids=ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    logp = logp.gather(2, ids[:, 1:, None]).squeeze(2)
    model.zero_grad()
    (logp * torch.linspace(-1, 1, logp.numel()).view_as(logp)).sum().backward()
    return logp.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logprobs_and_gradients_are_the_models_own(variant, full):
    plain, fused = adapted(variant, full)
    ids = torch.randint(VOCAB, (2, 19), generator=torch.Generator().manual_seed(2))
    (expected, slopes), (found, own) = computed(plain, ids), computed(fused, ids)
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5
    assert relative_gap(own, slopes) < 2e-5  # weights this large leave as much to rounding


def test_a_disabled_adapter_is_the_base_model():
    plain, fused = adapted("llama biases", False)
    ids = torch.arange(1, 12)[None]
    with torch.no_grad():
        expected = make_model("llama biases")(input_ids=ids).logits
        for model in (plain, fused):
            for module in model.modules():
                if isinstance(module, LoraLinear):
                    module.enable_adapters(False)
        torch.testing.assert_close(fused(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)


def test_every_norm_attention_and_dense_block_is_replaced_and_no_expert():
    model = make_model("qwen3 moe of some layers")
    fuse(model)
    replaced = {
        type(module).__name__
        for module in model.modules()
        if isinstance(module.__dict__.get("forward"), types.MethodType)
    }
    assert replaced == {"Qwen3MoeRMSNorm", "Qwen3MoeAttention", "Qwen3MoeMLP"}


def test_a_model_of_mixed_types_is_left_alone():
    model = make_model()
    model.lm_head.to(torch.bfloat16)
    fuse(model)
    assert not any("forward" in module.__dict__ for module in model.modules())
