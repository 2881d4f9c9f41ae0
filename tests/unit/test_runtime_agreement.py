"""When a step's mismatch is worth a warning, and what exact numerics ask of the other parts."""

import pytest

from headway.config.load import load_config
from headway.matching.memory import estimate_memory
from headway.models.shape import model_shape
from headway.models.tiny import write_tokenizer
from headway.runtime.agreement import disagreement
from headway.runtime.environment_worker import streams_to_train
from tests.unit.family_models import make_config, make_model


def told(mean, most, *, exact=False):
    return disagreement({"mismatch_mean": mean, "mismatch_max": most}, exact=exact)


def test_rounding_is_not_told_and_a_large_mismatch_is():
    assert disagreement({}, exact=True) == ""
    assert told(1e-6, 0.3) == told(0.01, 0.3) == ""
    text = told(0.02, 0.3)
    assert (
        "differ by 0.02 nats on average on tokens of the newest version (at most 0.3), more than 0.01" in text
    )
    for key in ("generator.kv_on_update", "trainer.replay_routing", "generator.numerics"):
        assert key in text


def test_exact_numerics_bear_no_mismatch_at_all():
    assert told(0.0, 0.0, exact=True) == ""
    assert "exact numerics did not hold" in told(1e-9, 1e-7, exact=True)


@pytest.mark.parametrize(("numerics", "streams"), [("fast", 1), ("exact", 0)])
def test_experts_are_asked_for_where_they_are_replayed(tmp_path, numerics, streams):
    make_model("qwen3 moe", vocab_size=259).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    config = load_config(
        None, ["model.path=tiny", "environment.name=arithmetic", f"generator.numerics={numerics}"]
    )
    assert len(streams_to_train(config, tmp_path)) == streams


def test_an_exact_generator_has_no_kv_and_no_packed_weights():
    facts = model_shape(make_config("llama").to_dict()).facts()
    given = [
        "model.path=tiny",
        "environment.name=arithmetic",
        "generator.numerics=exact",
        "trainer.full=true",
    ]
    found = estimate_memory(facts, load_config(None, given))
    parts = {part.what: part for part in found.parts if part.process == "generator0"}
    assert set(parts) == {"program", "weights", "update", "decoding"}
    assert parts["weights"].num_bytes == 4 * facts.num_params
