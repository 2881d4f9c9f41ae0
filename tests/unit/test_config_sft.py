"""The config of headway sft, alone and in one file with that of headway train."""

import pytest

from headway.cli.main import main
from headway.config.load import load_config, load_sft_config, sections_not_read
from headway.config.show import write_config
from headway.config.stages import change_sft
from headway.core.errors import ConfigError

BOTH = """
[model]
path = "tiny"
[environment]
name = "arithmetic"
[stop]
steps = 7
[sft]
data = "some/data.jsonl"
eval_data = "/else/where.jsonl"
[trainer]
learning_rate = 1e-3
"""


@pytest.fixture
def both(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text(BOTH)
    return path


def refused(path, *overrides, load=load_sft_config):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_one_file_holds_both_commands(both, tmp_path):
    supervised, reinforced = load_sft_config(both), load_config(both)
    assert supervised.sft.data == str(tmp_path / "some/data.jsonl")
    assert supervised.sft.eval_data == "/else/where.jsonl"
    assert supervised.trainer == reinforced.trainer
    assert reinforced.stop.steps == 7
    assert sections_not_read(both) == ["environment", "stop"]


def test_a_path_on_the_command_line_is_relative_to_here(both, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    assert load_sft_config(both, ["sft.data=d.jsonl"]).sft.data == str(tmp_path.parent / "d.jsonl")


def test_an_override_of_the_other_commands_setting_is_refused(both):
    assert refused(both, "stop.steps=3", "queue.bound=1") == [
        "command line: queue.bound: is a setting of headway train, and has no effect here. Leave it out",
        "command line: stop.steps: is a setting of headway train, and has no effect here. "
        "headway sft has sft.steps",
    ]
    assert refused(both, "sft.epochs=3", load=load_config) == [
        "command line: sft.epochs: is a setting of headway sft, and has no effect here. Leave it out"
    ]


def test_mistakes_are_told_with_their_lines(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text("[sft]\nepoch = 2\ntoo_long = 'cutt'\neval_every_steps = 5\n[mdoel]\npath = 'tiny'\n")
    assert refused(path) == [
        f"{path}: model.path: is required: The model to train: a directory with a Hugging Face checkpoint "
        "(relative to the config file, or to the current directory where it is not there), a "
        'name on the Hugging Face Hub, or "smollm2" or "tiny", which headway model fetch brings. '
        'In section [model] write, for example, path = "smollm2"',
        f"{path}:1: sft.data: is required: JSONL file of conversations to train on; a relative path is "
        'relative to the config file. In section [sft] write, for example, data = "train.jsonl"',
        f"{path}:2: sft.epoch: is not a setting (got 2). Did you mean sft.epochs?",
        f'{path}:3: sft.too_long: must be "error", "skip" or "cut" (got \'cutt\'). Did you mean "cut"?',
        f"{path}:5: mdoel: is not a section. Did you mean [model]?",
    ]
    assert refused(path, "sft.data=a", "sft.epoch=", "sft.too_long=", "mdoel=", "model.path=tiny") == [
        f"{path}:4: sft.eval_every_steps: needs sft.eval_data, of which there is none (got 5). "
        "Name a JSONL file, or set eval_every_steps = 0"
    ]


def test_a_printed_config_is_the_same_config(both, tmp_path, capsys):
    assert main(["sft", str(both), "--print-config", "--smoke"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert load_sft_config(printed) == load_sft_config(both, ["sft.steps=2"])
    write_config(load_sft_config(both), tmp_path / "written.toml")
    assert load_sft_config(tmp_path / "written.toml") == load_sft_config(both)


def test_what_the_data_was_made_with_may_not_change(both):
    config, changes = change_sft(both, [("sft.epochs", 5)], ["sft.steps=3", "trainer.learning_rate=1e-4"])
    assert (config.sft.epochs, config.sft.steps) == (5, 3)
    assert changes == [("sft.steps", 3), ("trainer.learning_rate", 1e-4)]
    with pytest.raises(ConfigError) as caught:
        change_sft(both, [], ["sft.data=x", "sft.batch_size=3", "trainer.full=true", "run.seed=2"])
    assert [problem.key for problem in caught.value.problems] == [
        "sft.data",
        "sft.batch_size",
        "trainer.full",
        "run.seed",
    ]
