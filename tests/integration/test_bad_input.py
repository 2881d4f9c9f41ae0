"""Bad input ends a command with exit code 2, the rule, the value and the remedy; never with a traceback."""

import json
import shutil

import pytest

from headway.models.cache import MANIFEST


@pytest.fixture
def model(tmp_path, tiny_model):
    """A copy of the tiny model that a test may break."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def line_of(bench, text):
    lines = bench.config.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_missing_model_directory(bench):
    bench.config.write_text(bench.config.read_text().replace('"tiny"', '"./nothing"'))
    said = bench.train().refused()
    assert f"test.toml:{line_of(bench, './nothing')}: model.path" in said
    assert "got './nothing'" in said
    assert "Name a checkpoint directory" in said
    assert not bench.runs.exists()


@pytest.mark.parametrize("manifest", [True, False])
def test_half_downloaded_model(bench, model, manifest):
    if not manifest:
        (model / MANIFEST).unlink()
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    said = bench.train(f"model.path={model}").refused()
    assert "incomplete" in said
    assert str(weights.stat().st_size) in said
    assert "fetch the model again" in said
    assert not bench.runs.exists()


def test_model_without_chat_template(bench, model):
    for file in (MANIFEST, "chat_template.jinja"):
        (model / file).unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    said = bench.train(f"model.path={model}").refused()
    assert "chat template" in said
    assert not bench.runs.exists()


def test_the_tokenizer_of_another_model(bench, model):
    (model / MANIFEST).unlink()
    settings = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": 65}))
    said = bench.train(f"model.path={model}").refused()
    assert "command line: model.path: the tokenizer must belong to the model" in said
    assert "Copy the tokenizer's files" in said
    assert not bench.runs.exists()


def test_a_vocabulary_larger_than_the_tokenizer(bench, model):
    from safetensors.numpy import load_file, save_file

    (model / MANIFEST).unlink()
    weights = load_file(model / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = rows[list(range(259)) + [0] * 253]
    save_file(weights, model / "model.safetensors")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"vocab_size": 512}))
    said = bench.train(f"model.path={model}").refused()
    assert "the embedding has 512 rows, and the tokenizer only 259 tokens" in said
    assert not bench.runs.exists()


def test_prompt_longer_than_the_context(bench):
    said = bench.train("generator.max_context_tokens=8").refused()
    assert "generator.max_context_tokens" in said
    assert "leaves no room for an answer in a context of 8" in said
    assert "Raise generator.max_context_tokens" in said
    bench.check()


def test_group_size_one_with_a_group_estimator(bench):
    bench.config.write_text(bench.config.read_text().replace("group_size = 4", "group_size = 1"))
    said = bench.train().refused()
    assert f"test.toml:{line_of(bench, 'group_size = 1')}" in said
    assert "queue.group_size" in said
    assert "at least 2" in said
    assert "got 1" in said


def test_batch_not_a_multiple_of_the_group(bench):
    bench.config.write_text(bench.config.read_text().replace("batch_size = 8", "batch_size = 10"))
    said = bench.train().refused()
    assert f"test.toml:{line_of(bench, 'batch_size = 10')}: queue.batch_size" in said
    assert "multiple of group_size (4)" in said
    assert "got 10" in said
    assert "Use 8 or 12" in said


def test_every_problem_is_shown_at_once_with_near_misses(bench):
    text = bench.config.read_text().replace("max_running = 16", "max_runing = 16")
    bench.config.write_text(text.replace("steps = 3", 'steps = "three"'))
    said = bench.train("queue.grup_size=4").refused()
    assert f"test.toml:{line_of(bench, 'max_runing')}" in said
    assert "max_running" in said
    assert f"test.toml:{line_of(bench, 'three')}: stop.steps" in said
    assert "queue.grup_size" in said
    assert "group_size" in said.replace("grup_size", "")


def test_a_run_directory_that_exists(bench):
    taken = bench.runs / "taken"
    taken.mkdir(parents=True)
    said = bench.train("run.name=taken").refused()
    assert str(taken) in said
    assert "run.name" in said
    assert f"headway resume {taken}" in said
    assert list(taken.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/headway", "FILE/runs"])
def test_an_unwritable_run_directory(bench, place):
    (bench.folder / "file").touch()
    place = place.replace("FILE", str(bench.folder / "file"))
    said = bench.train(f"run.dir={place}").refused()
    assert place in said
    assert "run.dir" in said


def test_an_unknown_environment(bench):
    bench.config.write_text(bench.config.read_text().replace('"arithmetic"', '"arithmetics"'))
    said = bench.train().refused()
    assert f"test.toml:{line_of(bench, 'arithmetics')}: environment.name" in said
    assert "arithmetics" in said
    assert "Did you mean arithmetic?" in said
    assert not bench.runs.exists()


def test_arguments_that_the_environment_does_not_take(bench):
    bench.config.write_text(bench.config.read_text().replace("levels = [1]", 'levels = [9], stile = "bare"'))
    said = bench.train().refused()
    assert f"test.toml:{line_of(bench, 'levels')}: environment.args.levels" in said
    assert "environment.args.stile" in said
    assert "style" in said
    assert not bench.runs.exists()


def test_an_environment_file_that_raises(bench):
    (bench.folder / "broken.py").write_text("raise RuntimeError('no licence')\n")
    said = bench.train(f"environment.name={bench.folder}/broken.py", "environment.args=").refused()
    assert "RuntimeError: no licence" in said
    assert "environment.name" in said
    assert not bench.runs.exists()


@pytest.mark.parametrize("command", ["train", "try"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        return Task(", "        raise KeyError(index)\n        return Task("),
        ("        pass\n\n    def num", "        raise KeyError(seed)\n\n    def num"),
    ],
)
def test_an_environment_that_fails_before_anything_is_generated(bench, command, old, new):
    override = bench.environment()
    file = bench.folder / "mine.py"
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    line = next(at for at, found in enumerate(file.read_text().splitlines(), 1) if "KeyError" in found)
    if command == "train":
        ended = bench.train(*override)
    else:
        ended = bench.headway("env", "try", file, "--model", "tiny")
    said = ended.refused()
    assert f"KeyError: 0, raised at {file}:{line}. Mend the environment" in said
    assert "headway resume" not in ended.out + ended.err
