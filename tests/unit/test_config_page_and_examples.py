"""The examples load, --print-config round trips, and docs/configuration.md is current."""

import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.config.load import load_config
from headway.config.reference import current_page
from headway.config.show import write_config

ROOT = Path(__file__).parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.toml")) if path.stem != "sft"]  # for train


def test_there_are_examples():
    assert {"quickstart.toml", "tiny.toml"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_loads_and_its_resolved_config_is_equal_to_it(path, tmp_path, capsys):
    config = load_config(path)
    write_config(config, tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config

    assert main(["train", str(path), "queue.bound=1", "--print-config"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert load_config(printed) == load_config(path, ["queue.bound=1"])


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_smoke_is_two_steps_and_overrides_come_after_it(path, tmp_path, capsys):
    assert main(["train", str(path), "--smoke", "--print-config", "eval.num_tasks=3"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    smoke = load_config(printed)
    assert (smoke.stop.steps, smoke.eval.num_tasks) == (2, 3)


def test_a_written_config_is_never_overwritten(tmp_path):
    config = load_config(EXAMPLES[0])
    write_config(config, tmp_path / "config.toml")
    with pytest.raises(FileExistsError):
        write_config(config, tmp_path / "config.toml")


def test_arguments_of_the_environment_are_explained(capsys):
    assert main(["train", str(ROOT / "examples" / "quickstart.toml"), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert '\n[environment.args]\n# Task: print a value, or define a function.\nkind = "output"\n' in printed


def test_the_configuration_page_is_current():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    command = "python -m headway.config.reference > docs/configuration.md"
    assert page == current_page(), f"run: {command}"
    program = [sys.executable, "-m", "headway.config.reference"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == page
