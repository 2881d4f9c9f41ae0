"""key=value overrides."""

import pytest

from headway.config.load import load_config
from headway.config.source import parse_override, read_source
from headway.core.errors import ConfigError, UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("queue.bound=2", (("queue", "bound"), 2)),
        ("queue.bound = 2", (("queue", "bound"), 2)),
        ("a.b=1e-3", (("a", "b"), 1e-3)),
        ("a.b=true", (("a", "b"), True)),
        ("a.b=True", (("a", "b"), "True")),
        ("model.path=./my models/x=1", (("model", "path"), "./my models/x=1")),
        ('a.b="2"', (("a", "b"), "2")),
        ("a.b=[1, 2]", (("a", "b"), [1, 2])),
        ("a.b={x = 1}", (("a", "b"), {"x": 1})),
        ("a.'b.c'.d=x", (("a", "b.c", "d"), "x")),
        ("a.b=", (("a", "b"), None)),
        ("a.b=1\nc = 2", (("a", "b"), "1\nc = 2")),
    ],
)
def test_values_are_toml_or_plain_strings(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "queue.bound",
            "command line: an override must have the form key=value (got 'queue.bound'). "
            "Write it like queue.bound=2; options begin with two dashes",
        ),
        (
            "=2",
            "command line: an override must have the form key=value (got '=2'). "
            "Write it like queue.bound=2; options begin with two dashes",
        ),
        (
            "queue..bound=2",
            "command line: an override's key must be names joined by dots (got 'queue..bound'). "
            "Write it like queue.bound=2",
        ),
        (
            "a.b=[1, 2",
            "command line: a.b: the value is not valid TOML: Unclosed array (got '[1, 2'). "
            "Put the whole override in single quotes for the shell",
        ),
    ],
)
def test_malformed_overrides(text, message):
    with pytest.raises(UserError) as caught:
        parse_override(text)
    assert str(caught.value) == message


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[queue]\nbound = 1\ndepth = 1\n[environment]\nargs = { kind = 'output', turns = 2 }\n")

    def read(*overrides):
        return path, read_source(path, overrides)

    return read


def test_an_override_replaces_adds_and_is_named(read):
    path, source = read("queue.bound=2", "queue.bound=3", "environment.args.turns=1", "new.key=x")
    assert source.values == {
        "queue": {"bound": 3, "depth": 1},
        "environment": {"args": {"kind": "output", "turns": 1}},
        "new": {"key": "x"},
    }
    assert source.where("queue.bound") == "command line"
    assert source.where("queue.depth") == f"{path}:3"
    assert source.where("queue.absent") == f"{path}:1"
    assert source.where("environment.args.turns") == "command line"
    assert source.where("environment.args.kind") == f"{path}:5"
    assert source.where("new.key") == "command line"
    assert source.where("absent.key") == str(path)


def test_an_empty_override_restores_the_default(read):
    _, source = read("queue.bound=", "queue.absent=", "absent.key=")
    assert source.values["queue"] == {"depth": 1}
    assert not source.is_given("queue.bound")
    assert "absent" not in source.values


def test_all_malformed_overrides_come_at_once(read):
    with pytest.raises(ConfigError) as caught:
        read("queue.bound", "queue.depth=2", "=1")
    assert len(caught.value.problems) == 2


FILE = '[model]\npath = "tiny"\n[environment]\nname = "arithmetic"\nargs = { levels = [1] }\n'


@pytest.mark.parametrize(
    ("overrides", "levels", "noted"),
    [
        ((), [1], False),
        (("environment.name=arithmetic",), [1], False),
        (("environment.name=python-code",), None, True),
        (("environment.args.turns=2", "environment.name=python-code"), None, True),
        (("environment.name=python-code", "environment.args={ turns = 2 }"), None, False),
    ],
)
def test_arguments_go_with_the_environment_of_the_file(tmp_path, capsys, overrides, levels, noted):
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    args = load_config(file, overrides).environment.args
    assert args["levels"] == [1] if levels else args["levels"] != [1]
    assert args.get("turns") == (2 if any("turns" in text for text in overrides) else args.get("turns"))
    note = f"note: environment.args of {file}:5 belong to arithmetic and are left out\n"
    assert capsys.readouterr().err == (note if noted else "")
