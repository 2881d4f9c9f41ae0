"""The benchmarks against peers: options, configs, what they compute from runs. They run nothing here."""

import ast
import json
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Benchmarks import one another by bare names; none of these names stays behind."""
    monkeypatch.syspath_prepend(str(ROOT))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(ROOT) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_scenes_are_chosen_by_name():
    import loop

    options = loop.parse(["--scenes", "tiny, reward", "--rounds", "2", "--steps", "4"])
    assert (options.scenes, options.rounds, options.steps) == (["tiny", "reward"], 2, 4)
    assert loop.parse([]).scenes == [
        "micro",
        "tiny",
        "smollm2.short",
        "smollm2.long",
        "reward",
        "tool_latency",
    ]
    with pytest.raises(SystemExit):
        loop.parse(["--scenes", "huge"])


@pytest.mark.parametrize("script", sorted(ROOT.glob("*.py")), ids=lambda path: path.stem)
def test_every_script_finds_what_it_imports(script):
    tree = ast.parse(script.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (ROOT / f"{node.module}.py").is_file():
            there = {
                name
                for part in ast.parse((ROOT / f"{node.module}.py").read_text()).body
                for name in named(part)
            }
            assert {alias.name for alias in node.names} <= there
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]:
                root = (name or "").partition(".")[0]
                assert find_spec(root), f"{script.name} imports {name}"


def named(part):
    """Return the names that a statement of a module defines."""
    match part:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [part.name]
        case ast.Assign():
            return [
                node.id for target in part.targets for node in ast.walk(target) if isinstance(node, ast.Name)
            ]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in part.names]
    return []


def test_the_other_benchmarks_take_their_options():
    import device_check
    import engine

    assert engine.parse(["--model", "tiny", "--scale", "0.25"]).scale == 0.25
    assert device_check.parse(["--device", "cpu"]).device == "cpu"


@pytest.mark.parametrize(("name", "params"), [("micro", 90_624), ("tiny", 624_128)])
def test_a_scene_passes_the_checks_of_a_run(name, params, tmp_path):
    import loop_models
    import loop_scenes

    from headway.config.load import load_config
    from headway.environments.registry import build
    from headway.models.load import load_state
    from headway.models.shape import read_shape
    from headway.renderers.chat import Renderer

    scene = loop_scenes.SCENES[name]
    model = loop_models.make_model(scene.model, tmp_path)
    assert loop_models.make_model(scene.model, tmp_path) == model  # the second time it is there
    prompts = loop_scenes.make_prompts(scene, model, tmp_path, num=4)
    config = load_config(loop_scenes.write_config(scene, model, prompts, tmp_path, steps=3))
    assert read_shape(model).num_params == params
    load_state(model)
    renderer = Renderer(model)
    environment = build(config.environment.name, config.environment.args)
    for index, text in enumerate(json.loads(prompts.read_text())):
        ids = renderer.first_prompt(environment.prompt(environment.task("train", index, None)))
        assert list(ids) == list(text.encode())  # the prompt as it is: a byte a token
        assert len(ids) + config.generator.max_answer_tokens == config.generator.max_context_tokens


@pytest.mark.parametrize("name", ["micro", "tiny"])
def test_the_end_token_of_a_random_model_is_never_sampled(name, tmp_path):
    import loop_models
    import torch

    from headway.models.load import load_causal_lm
    from headway.renderers.chat import Renderer

    model = loop_models.make_model(name, tmp_path)
    torch.manual_seed(0)
    with torch.no_grad():
        logits = load_causal_lm(model)(torch.randint(0, 256, (8, 80))).logits
    (end,) = Renderer(model).stop_ids
    assert logits.log_softmax(-1)[..., end].max() < -15


def test_the_slow_tool_s_config_passes(tmp_path):
    import loop_models
    import loop_scenes

    from headway.config.load import load_config

    config = load_config(loop_scenes.write_slow_tool(loop_models.make_model("micro", tmp_path), tmp_path))
    assert config.environment.args == {"tool_s": 0.5, "sigma": 1.5, "answer_tokens": 16}


def test_samples_a_second_leave_out_the_first_and_last_steps():
    import loop_sides

    ends = [10.0, 12.0, 14.0, 18.0, 18.5, 19.0]
    assert loop_sides.rate(ends, lead=2, tail=2) == 32 * 2 / 6.0
    assert loop_sides.rate(ends, lead=1) == 32 * 5 / 9.0
    with pytest.raises(ValueError, match="none to measure"):
        loop_sides.rate(ends, lead=2, tail=4)


def test_the_difference_of_means_has_welch_s_interval():
    """Welch-Satterthwaite by hand: variances 1 and 4 of five values each give 5.88 degrees of freedom."""
    import spread

    first, second = [1 + x for x in (-1.0, -1.0, 0.0, 1.0, 1.0)], [2 * x for x in (-1.0, -1.0, 0.0, 1.0, 1.0)]
    assert statistics.variance(first) == 1.0
    found = spread.difference(first, second)
    assert found.mean == pytest.approx(1.0)
    assert found.half == pytest.approx(2.5706 * 1.0, rel=1e-4)  # t of 5 degrees, times the root of 1/5 + 4/5


def test_parts_of_a_result_are_merged(tmp_path, monkeypatch):
    import keep

    monkeypatch.setattr(keep, "ROOT", tmp_path)
    keep.merge("loop", "micro", {"micro.ratio": 1.0})
    keep.merge("loop", "tiny", {"tiny.ratio": 2.0})
    keep.merge("loop", "micro", {"micro.ratio": 3.0})
    record = json.loads((tmp_path / "results" / "loop.json").read_text())
    assert record["result"] == {"micro.ratio": 3.0, "tiny.ratio": 2.0}
    assert set(record["parts"]) == {"micro", "tiny"}


def test_peak_memory_of_a_process_tree_is_seen():
    import process_tree

    child = "import time; x = bytearray(200 << 20); time.sleep(1.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    ran = process_tree.run_watched([sys.executable, "-c", parent])
    assert ran.peak_bytes > 200 << 20
    with pytest.raises(RuntimeError, match="ended with 3"):
        process_tree.run_watched([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_roofline_of_a_shape_is_positive():
    import roofline

    from headway.models.shape import ModelShape

    shape = ModelShape(2, 32, 4, 2, 8, 64, 100, 64, 1e-5, True, 1e4, None)
    found = roofline.measure(shape, threads=1, rows=4, context=16)
    assert found.read_bytes_per_s > 0
    assert found.flops_per_s == pytest.approx(2 * shape.facts().linear_params * found.gemm_tokens_per_s)
