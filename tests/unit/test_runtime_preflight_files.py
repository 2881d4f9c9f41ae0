"""Files that environments take are there before a run is made."""

import json

import pytest

from headway.cli.main import main
from tests.unit.preflight_parts import found, only, subject

ROW = '{"prompt": "3+4=", "answer": 7}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sums.jsonl").write_text(ROW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def looked_at(folder, *overrides, name="dataset", reward="number"):
    given = [f"environment.name={name}", *overrides]
    if name == "dataset":
        given.append(f"environment.args.reward={reward}")
    return found(subject("tiny", *given), "files")


def test_what_is_there_is_named(folder):
    assert only(looked_at(folder, "environment.args.data=sums.jsonl"), "ok").text == "sums.jsonl: there"
    assert only(looked_at(folder, name="arithmetic"), "ok").text == "no environment takes one"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("gone.jsonl", "the file must exist"),
        ("empty.jsonl", "the file must not be empty"),
        ("/dev/null", "the file must be a file or a folder"),
        ("sums.csv", "the data must be a .jsonl or .parquet file"),
    ],
)
def test_what_is_not_there_is_an_error_of_its_key(folder, data, words):
    (folder / "empty.jsonl").write_text("\n \n")
    (folder / "sums.csv").write_text("prompt,answer\n")
    finding = only(looked_at(folder, f"environment.args.data={data}"), "error")
    assert finding.text.startswith(words)
    assert (finding.key, finding.where) == ("environment.args.data", "command line")


def test_a_row_that_is_wrong_is_named_with_its_line(folder):
    (folder / "bad.jsonl").write_text(ROW + "no JSON\n")
    finding = only(looked_at(folder, "environment.args.data=bad.jsonl"), "error")
    assert finding.where == f"{folder}/bad.jsonl:2"


@pytest.mark.parametrize("tasks", ["gone.jsonl", "gone.py:tasks"])
def test_files_of_other_environments_and_of_sources_are_looked_for(folder, tasks):
    args = f'{{ tasks = "{tasks}", command = ["true"] }}'
    (one,) = looked_at(folder, f"environment.args={args}", name="harness")
    assert (one.level, one.key) == ("error", "environment.args.tasks")
    given = ("environment.name=arithmetic", f"source.a.args={args}", "source.a.environment=harness")
    (one,) = found(subject("tiny", *given), "files")
    assert (one.level, one.key) == ("error", "source.a.args.tasks")


@pytest.fixture
def no_models(tmp_path, monkeypatch):
    """A machine where no model was fetched yet."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize(
    "given",
    [
        {"--data": "gone.jsonl"},
        {"--data": ""},
        {"--data": "empty.jsonl"},
        {"--data": "bad.jsonl"},
        {"--eval-data": "gone.jsonl"},
        {"--reward": "gone.py:score"},
        {"--reward": ""},
        {"--model": "gone"},
        {"--model": ""},
    ],
    ids=lambda given: " ".join(*given.items()),
)
def test_what_is_wrong_on_the_command_line_makes_nothing(folder, capsys, given):
    (folder / "empty.jsonl").touch()
    (folder / "bad.jsonl").write_text('{"prompt": "3+4="}\n')
    before = sorted(folder.iterdir())
    options = {"--model": "tiny", "--data": "sums.jsonl", "--reward": "number"} | given
    assert main(["train", *(word for pair in options.items() for word in pair), "eval.num_tasks=0"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert sorted(folder.iterdir()) == before
    assert json.loads(ROW)  # it was the input, and not the row beside it
