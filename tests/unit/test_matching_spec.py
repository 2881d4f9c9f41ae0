"""A SPEC: a run's config with hardware, its errors, and the models that it describes."""

from pathlib import Path

import pytest

from headway.config.compose import Config
from headway.config.load import PLAN_SECTIONS, load_config
from headway.core.errors import ConfigError, UserError
from headway.core.schema import sections_of
from headway.matching.build import models_of
from headway.matching.reference import current_page
from headway.matching.spec_load import SpecSections, load_spec

SPEC = """
[model]
path = "Qwen3-30B-A3B"
[trainer]
full = true
[queue]
group_size = 8
batch_size = 64
[hardware.trainer]
accelerator = "H200 SXM"
count = 16
offload_optimizer = true
[hardware.generator]
accelerator = "H200 SXM"
count = 16
tensor_parallel = 4
max_running = 128
[workload]
answer_tokens = 2000.0
max_tokens = 16384
"""


@pytest.fixture
def spec_file(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(SPEC)
    return file


def test_hardware_makes_the_replicas_and_slots(spec_file):
    spec = load_spec(spec_file, ["queue.bound=5"])
    assert (spec.replicas, spec.max_running, spec.max_context_tokens) == (4, 128, 16384)
    assert (spec.scheduler.num_replicas, spec.scheduler.queue.bound) == (4, 5)
    assert spec.model is not None
    assert spec.model.name == "Qwen3-30B-A3B"


def test_a_runs_config_is_a_spec_once_its_times_are_measured(tmp_path):
    root = Path(__file__).parents[2]
    timings = ["timings.decode_base_s=0.02", "timings.decode_row_s=0.001", "timings.decode_token_s=0.0"]
    timings += ["timings.prefill_token_s=0.001", "timings.step_base_s=1.0", "timings.step_token_s=0.001"]
    spec = load_spec(root / "examples/tiny.toml", timings)
    models = models_of(spec)
    assert models.engine.decode_s(4, 100) == pytest.approx(0.024)
    assert models.engine.prefill_s(100, 0) == pytest.approx(0.1)
    assert models.trainer.step_s(8, 1000, 0.0) == pytest.approx(2.0)
    assert models.engine.kv_tokens == 0
    assert models.replicas == spec.config.generator.replicas


def test_a_run_leaves_the_sections_of_a_plan_alone(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\npath = "tiny"\n[environment]\nname = "arithmetic"\n[hardware.trainer]\ncount = 4\n'
    )
    assert load_config(file).model.path == "tiny"
    with pytest.raises(ConfigError, match=r"hardware\.trainer\.count: is a setting of headway plan"):
        load_config(file, ["hardware.trainer.count=8"])
    assert set(PLAN_SECTIONS) == sections_of(SpecSections).keys() - sections_of(Config).keys()


def problems_of(file, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_spec(file, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_errors_name_key_line_rule_and_remedy(spec_file):
    spec_file.write_text(
        SPEC.replace("count = 16\ntensor", "count = 18\ntensor").replace("max_running", "max_runing")
    )
    assert problems_of(spec_file) == [
        f"{spec_file}:15: hardware.generator.count: must be a multiple of the 4 that tensor, expert and "
        "pipeline parallelism make a replica (got 18). Use 16, or set replicas",
        f"{spec_file}:17: hardware.generator.max_runing: is not a setting (got 128). Did you mean "
        "hardware.generator.max_running?",
    ]


def test_a_nested_section_that_is_none_is_refused(spec_file):
    spec_file.write_text("[hardware]\ntrainer = 3\n")
    found = " ".join(problems_of(spec_file))
    assert f"{spec_file}:2: hardware.trainer: must be a section, written [hardware.trainer] (got 3)" in found


def test_speed_must_be_said(spec_file):
    found = problems_of(spec_file, "hardware.generator.accelerator=", "timings.decode_base_s=1.0")
    assert [line.partition(": must")[0].rpartition(": ")[2] for line in found if ": must" in line] == [
        "hardware.generator.accelerator"
    ]
    assert any("decode_row_s" in line for line in found)


def test_an_unknown_model_is_placed(spec_file):
    spec_file.write_text(SPEC.replace("Qwen3-30B-A3B", "Nothing-1B"))
    with pytest.raises(UserError, match=rf"{spec_file}:3: model\.path: must name a model"):
        load_spec(spec_file)


def test_what_does_not_fit_is_refused_with_by_how_much_and_a_remedy(spec_file):
    trainer = load_spec(spec_file, ["hardware.trainer.count=1", "hardware.trainer.offload_optimizer=false"])
    with pytest.raises(UserError) as caught:
        models_of(trainer)
    text = str(caught.value)
    assert text.startswith(
        "command line: hardware.trainer.count: the trainer must fit: each of 1 H200 SXM needs"
    )
    assert "too little" in text
    assert "Use hardware.trainer.count = " in text
    remedied = caught.value.remedy.split()[3]
    models_of(
        load_spec(
            spec_file, [f"hardware.trainer.count={remedied}", "hardware.trainer.offload_optimizer=false"]
        )
    )
    big = ["model.path=DeepSeek-V3", "hardware.trainer.count=512", "hardware.generator.weights=bf16"]
    with pytest.raises(UserError, match=r"GB of weights and has .* too little.*fp8"):
        models_of(load_spec(spec_file, big))
    long = ["workload.max_tokens=40000000"]
    with pytest.raises(UserError):
        models_of(load_spec(spec_file, long))


def test_the_page_of_a_spec_is_current():
    page = Path(__file__).parents[2] / "docs" / "spec.md"
    assert page.read_text(encoding="utf-8") == current_page()
