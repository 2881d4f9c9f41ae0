"""Hooks in a config: where their files are looked for, and what a broken one says before anything starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.algorithms.advantages import advantage_function
from headway.config.load import load_config
from headway.config.show import write_config
from headway.core.errors import ConfigError
from headway.environments.registry import build

SOURCES = Path(headway.__file__).parents[1]

CONFIG = """
[model]
path = "tiny"
[environment]
name = "parts/mine.py"
[algorithm]
advantage = "../shaping.py:half"
loss = "parts/mine.py:plain"
"""

MINE = '''
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Settings:
    size: int = 3

class Mine:
    """Mine."""
    settings_type = Settings
    name, resume, needs_sandbox, stop_strings, system_prompt = "own", "restart", False, (), None
    def __init__(self, settings, seed): self.settings = settings
    def num_tasks(self, split): return self.settings.size
    def task(self, split, index, level): ...
    def prompt(self, task): ...
    async def rollout(self, task, chat, sandbox): ...
    async def score(self, task, outcome, sandbox): ...

def plain(logp, behaviour_logp, advantages, settings):
    return -advantages * logp, None
'''

SHAPING = """
def half(rewards, settings):
    return [reward / 2 for reward in rewards]

def no_settings(rewards):
    return rewards

async def late(rewards, settings):
    return rewards
"""


@pytest.fixture
def folder(tmp_path):
    """A config with all its hooks beside it, in a folder that is not the current one."""
    (tmp_path / "project" / "parts").mkdir(parents=True)
    (tmp_path / "project" / "run.toml").write_text(CONFIG)
    (tmp_path / "project" / "parts" / "mine.py").write_text(MINE)
    (tmp_path / "shaping.py").write_text(SHAPING)
    return tmp_path


def test_files_are_relative_to_the_config_and_the_written_config_means_the_same_anywhere(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = load_config(Path("project/run.toml"))
    assert config.environment.name == str(folder / "project" / "parts" / "mine.py")
    assert config.algorithm.advantage == f"{folder / 'shaping.py'}:half"
    assert config.algorithm.loss == f"{folder / 'project' / 'parts' / 'mine.py'}:plain"
    (folder / "run").mkdir()
    write_config(config, folder / "run" / "config.toml")
    monkeypatch.chdir(folder / "run")
    again = load_config(folder / "run" / "config.toml")
    assert again == config
    assert build(again.environment.name, again.environment.args).num_tasks("train") == 3
    assert advantage_function(again.algorithm)([1.0, 3.0]) == [0.5, 1.5]


def test_files_on_the_command_line_are_relative_to_the_current_directory(folder, monkeypatch):
    monkeypatch.chdir(folder / "project" / "parts")
    overrides = ("environment.name=mine.py", "algorithm.advantage=../../shaping.py:half")
    config = load_config(folder / "project" / "run.toml", overrides)
    assert config.environment.name == str(folder / "project" / "parts" / "mine.py")
    assert config.algorithm.advantage == f"{folder / 'shaping.py'}:half"
    assert load_config(None, ("model.path=tiny", *overrides)).environment.name == config.environment.name


@pytest.mark.parametrize(
    ("advantage", "rule"),
    [
        ("gone.py:half", "the file does not exist"),
        ("../shaping.py:third", "must have a function 'third'"),
        ("../shaping.py", "must name a function"),
        (
            "../shaping.py:no_settings",
            "must be callable as no_settings(rewards, settings): too many positional",
        ),
        ("../shaping.py:late", "must not be async"),
        ("no_such_module:half", "the module no_such_module raised ModuleNotFoundError: No module named"),
        ("gropo", "must be a known advantage (got 'gropo'). Did you mean 'grpo'?"),
    ],
)
def test_a_broken_hook_is_a_config_error_at_its_line(folder, advantage, rule):
    file = folder / "project" / "run.toml"
    file.write_text(CONFIG.replace("../shaping.py:half", advantage))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    (problem,) = map(str, caught.value.problems)
    assert problem.startswith(f"{file}:7: algorithm.advantage: ")
    assert rule in problem


def test_a_broken_loss_is_a_config_error(folder):
    with pytest.raises(
        ConfigError, match=r"algorithm\.loss: must be callable as half\(logp, behaviour_logp, "
    ):
        load_config(folder / "project" / "run.toml", (f"algorithm.loss={folder}/shaping.py:half",))


def train(folder, *arguments, start=("-m", "headway")):
    return subprocess.run(
        [sys.executable, *start, "train", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_script_and_the_module_find_modules_in_the_current_directory(folder):
    """As `headway` starts: the script's own folder is first on the path, not the current one."""
    program = "import sys; from headway.cli.main import main; sys.path.remove(''); sys.exit(main())"
    arguments = ["project/run.toml", "--print-config", "algorithm.advantage=shaping:half"]
    for start in (["-c", program], ["-m", "headway"]):
        done = train(folder, *arguments, start=start)
        assert done.returncode == 0, done.stderr
        assert 'advantage = "shaping:half"' in done.stdout
        assert f'name = "{folder}/project/parts/mine.py"' in done.stdout


def test_a_hook_that_cannot_be_used_leaves_no_run_directory(folder):
    done = train(folder, "project/run.toml", "algorithm.advantage=shaping:no_settings")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: command line: algorithm.advantage: must be callable as no_settings("
    )
    assert not (folder / "runs").exists()
