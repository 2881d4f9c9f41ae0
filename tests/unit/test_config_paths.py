"""Files that a config names are relative to its own file, and on the command line to the current folder."""

import json
from pathlib import Path

import pytest

from headway.config.load import load_config, load_sft_config
from headway.config.show import write_config

HARNESS = """
[model]
path = "tiny"
[environment]
name = "harness"
[environment.args]
tasks = {tasks}
eval_tasks = "held/out.jsonl"
files = "files"
command = ["true"]
[sandbox]
image = "needs.txt"
[algorithm]
correction = "own.py:weigh"
"""
OWN = "def weigh(rho, settings):\n    return rho\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "project" / "held").mkdir(parents=True)
    (tmp_path / "project" / "own.py").write_text(OWN)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def load(project, tasks, *overrides):
    (project / "run.toml").write_text(HARNESS.format(tasks=json.dumps(tasks)))
    return load_config(Path("../project/run.toml"), overrides)


@pytest.mark.parametrize(
    ("tasks", "found"),
    [
        ("tasks.jsonl", "{project}/tasks.jsonl"),
        ("own.py:tasks", "{project}/own.py:tasks"),
        ("package.module:tasks", "package.module:tasks"),
        ("/data/tasks.jsonl", "/data/tasks.jsonl"),
    ],
)
def test_they_are_relative_to_the_config_s_file(project, tasks, found):
    config = load(project, tasks)
    args = config.environment.args
    resolved = {name: str(Path(args[name]).resolve()) for name in ("eval_tasks", "files")}
    assert resolved == {"eval_tasks": f"{project}/held/out.jsonl", "files": f"{project}/files"}
    own = args["tasks"].replace(f"{project.parent}/elsewhere/../project", str(project))
    assert own == found.format(project=project)
    assert Path(config.sandbox.image).resolve() == project / "needs.txt"
    assert Path(config.algorithm.correction).resolve() == project / "own.py:weigh"


def test_on_the_command_line_they_are_relative_to_where_one_is(project):
    here = project.parent / "elsewhere"
    config = load(project, "a.jsonl", "environment.args.tasks=b.jsonl", "sandbox.image=image.tar")
    assert config.environment.args["tasks"] == f"{here}/b.jsonl"
    assert config.sandbox.image == f"{here}/image.tar"


def test_the_run_s_own_config_means_the_same_anywhere(project, tmp_path, monkeypatch):
    config = load(project, "tasks.jsonl")
    (tmp_path / "run").mkdir()
    write_config(config, tmp_path / "run" / "config.toml")
    monkeypatch.chdir(tmp_path)
    assert load_config(tmp_path / "run" / "config.toml") == config


def test_a_default_is_relative_to_the_config_s_file_too(project):
    (project / "run.toml").write_text('[model]\npath = "tiny"\n[environment]\nname = "bugfix"\n')
    config = load_config(Path("../project/run.toml"))
    assert Path(config.environment.args["tasks"]).resolve() == project / "bugfix" / "tasks.jsonl"


@pytest.mark.parametrize("load", [load_config, load_sft_config])
def test_a_model_beside_the_config_is_found_and_a_name_stays_a_name(project, load):
    text = '[model]\npath = "{}"\n[environment]\nname = "arithmetic"\n[sft]\ndata = "a.jsonl"\n'
    (project / "models" / "mine").mkdir(parents=True)
    (project / "tiny").mkdir()
    for path, found in (
        ("models/mine", f"{project}/models/mine"),
        ("models/other", "models/other"),
        ("tiny", "tiny"),
    ):
        (project / "run.toml").write_text(text.format(path))
        assert load(project / "run.toml").model.path == found
