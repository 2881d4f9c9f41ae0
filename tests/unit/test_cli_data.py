"""Training on a data file without a config."""

from pathlib import Path

import pytest

from headway.cli.data import asked_for
from headway.cli.main import main
from headway.config.load import load_config
from headway.config.minimal import as_config
from headway.core.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sums.jsonl").write_text('{"prompt": "3+4=", "answer": 7}\n{"prompt": "1+1=", "answer": 2}\n')
    (tmp_path / "own.py").write_text("def score(answer, row):\n    return answer == str(row['answer'])\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_options_are_overrides_and_the_first_of_them_may_stand_where_a_config_would(folder):
    config, given, name = asked_for(
        Path("queue.bound=0"), ("stop.steps=3",), model="tiny", data="sums.jsonl", reward="own.py:score"
    )
    assert (config, name) == (None, "sums")
    loaded = load_config(None, given)
    assert loaded.environment.args["data"] == str(folder / "sums.jsonl")
    assert loaded.environment.args["reward"] == f"{folder / 'own.py'}:score"
    assert (loaded.queue.bound, loaded.stop.steps) == (0, 3)


def test_the_config_that_is_printed_means_the_same(folder):
    given = asked_for(None, ("queue.bound=0",), model="tiny", data="sums.jsonl", reward="number").overrides
    (folder / "same.toml").write_text(as_config(given))
    assert load_config(folder / "same.toml") == load_config(None, given)


def test_options_beside_a_config_take_its_values_place(folder):
    (folder / "run.toml").write_text('[model]\npath = "tiny"\n\n[environment]\nname = "arithmetic"\n')
    config, given, name = asked_for(folder / "run.toml", (), data="sums.jsonl", reward="number")
    assert name == ""
    assert load_config(config, given).environment.name == "dataset"


def test_neither_a_config_nor_data(folder, capsys):
    with pytest.raises(UserError, match="a config file, or data"):
        asked_for(None, (), model="tiny")
    assert main(["train"]) == 2
    assert "--model MODEL --data FILE --reward NAME" in capsys.readouterr().err


def test_what_is_wrong_is_told_by_key(folder, capsys):
    assert main(["train", "--model", "tiny", "--data", "sums.jsonl"]) == 2
    assert "environment.args.reward: is required by the environment dataset" in capsys.readouterr().err
    assert main(["train", "--model", "tiny", "--data", "sums.jsonl", "--reward", "nmber"]) == 2
    assert "Did you mean number?" in capsys.readouterr().err
    assert (
        main(["train", "--data", "gone.jsonl", "--reward", "number", "--model", "tiny", "--print-config"])
        == 0
    )


def test_paths_in_a_config_are_relative_to_it(folder, monkeypatch):
    text = '[model]\npath = "tiny"\n[environment]\nname = "dataset"\n[environment.args]\n'
    (folder / "run.toml").write_text(
        text + 'data = "sums.jsonl"\nreward = "own.py:score"\neval_data = "hf:a/b"\n'
    )
    monkeypatch.chdir("/")
    args = load_config(folder / "run.toml").environment.args
    assert (args["data"], args["eval_data"]) == (str(folder / "sums.jsonl"), "hf:a/b")
    assert (
        load_config(folder / "run.toml", ["environment.args.data=x.jsonl"]).environment.args["data"]
        == "/x.jsonl"
    )
