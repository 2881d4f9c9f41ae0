"""Every kind of wrong config: the exact message, with place, key, value, rule and near miss."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from headway.config.clash import Clash
from headway.config.load import load_config
from headway.config.source import read_source
from headway.config.validate import validate
from headway.core.errors import ConfigError, UserError
from headway.core.settings import Problem, setting


@dataclass(frozen=True, slots=True)
class Depot:
    """A section with a rule of its own."""

    group_size: int = setting(8, "Rollouts per task.", ge=1)
    batch_size: int = setting(32, "Rollouts per step.", ge=1)
    bound: int = setting(2, "Staleness bound.", ge=0)
    strategy: Literal["shrink", "void"] = setting("shrink", "What to do.")

    def problems(self):
        if self.batch_size % self.group_size:
            rule = f"must be a multiple of group_size ({self.group_size})"
            yield Problem("batch_size", self.batch_size, rule, "Use 30.")


@dataclass(frozen=True, slots=True)
class Engine:
    """A section with every type."""

    path: str = setting(MISSING, "The model.", pattern="[a-z/]+")
    top_p: float = setting(1.0, "Nucleus.", gt=0, le=1)
    compile: bool = setting(False, "Compile.")
    threads: int | None = setting(None, "Threads.", ge=1)
    betas: tuple[float, float] = setting((0.9, 0.99), "Betas.", ge=0, lt=1)
    levels: tuple[int, ...] = setting((1, 2), "Levels.", ge=0)
    names: list[str] = setting(list, "Names.")
    args: dict[str, Any] = setting(dict, "Arguments.")
    bits: Literal[4, 8] = setting(8, "Bits.")
    seed: int | str = setting(0, "Seed.")


@dataclass(frozen=True, slots=True)
class Schema:
    queue: Depot
    model: Engine


def no_nucleus_when_synchronous(config):
    if config.queue.bound == 0 and config.model.top_p < 1:
        rule = f"must be 1 when queue.bound is {config.queue.bound}"
        yield Clash(("model.top_p", "queue.bound"), rule, "Use 1")


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text, *overrides):
        Path("run.toml").write_text(text)
        source = read_source(Path("run.toml"), overrides)
        examples, rules = {"model.path": "smollm"}, [no_nucleus_when_synchronous]
        return validate(Schema, source, examples=examples, rules=rules)

    return load


@pytest.fixture
def messages(load):
    def messages(text, *overrides):
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        return [str(problem) for problem in caught.value.problems]

    return messages


GIVEN = '[model]\npath = "x"\n'


def test_a_right_file_loads_with_defaults_and_types(load):
    config = load(GIVEN + "top_p = 1\nbetas = [0, 0.5]\nargs.a.b = 1\nlevels = []\nthreads = 3\nseed = 'x'")
    assert config == Schema(
        Depot(), Engine("x", 1.0, betas=(0.0, 0.5), args={"a": {"b": 1}}, levels=(), threads=3, seed="x")
    )
    assert type(config.model.top_p) is float


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("top_p = '1'", "model.top_p: must be a number (got '1'). Write it without quotes"),
        ("top_p = true", "model.top_p: must be a number (got True)"),
        ("top_p = nan", "model.top_p: must be a finite number (got nan)"),
        ("top_p = inf", "model.top_p: must be a finite number (got inf)"),
        ("top_p = 0", "model.top_p: must be above 0 and at most 1 (got 0)"),
        (
            "compile = 1",
            "model.compile: must be true or false (got 1). Write it in lower case and without quotes",
        ),
        ("threads = 2.0", "model.threads: must be an integer (got 2.0). Write 2"),
        ("threads = 2.5", "model.threads: must be an integer (got 2.5)"),
        ("threads = false", "model.threads: must be an integer (got False)"),
        ("threads = 0", "model.threads: must be at least 1 (got 0)"),
        ("path = 3", "model.path: must be a string (got 3). Write it in quotes"),
        ("path = 'X'", "model.path: must be of the form [a-z/]+ (got 'X')"),
        ("betas = [0.9]", "model.betas: must have 2 entries (got [0.9])"),
        ("betas = [0.9, 1]", "model.betas: the second entry must be at least 0 and below 1 (got [0.9, 1])"),
        ("levels = 3", "model.levels: must be a list of integer (got 3). Write it in square brackets"),
        (
            "levels = [1, 'a']",
            "model.levels: the second entry must be an integer (got [1, 'a'])",
        ),
        ("args = 1", "model.args: must be a table (got 1). Write it as { key = value }"),
        ("bits = 5", "model.bits: must be 4 or 8 (got 5)"),
        ("bits = 8.0", "model.bits: must be 4 or 8 (got 8.0)"),
        ("seed = 0.5", "model.seed: must be integer or string (got 0.5). Write it in quotes"),
    ],
)
def test_a_wrong_value_is_named_with_line_rule_and_remedy(messages, line, message):
    text = "[model]\n" + ("" if line.startswith("path") else 'path = "x"\n') + line
    number = 2 if line.startswith("path") else 3
    assert messages(text) == [f"run.toml:{number}: {message}"]


def test_a_wrong_choice_lists_all_and_guesses(messages):
    assert messages(GIVEN + "[queue]\nstrategy = 'shrnk'") == [
        'run.toml:4: queue.strategy: must be "shrink" or "void" (got \'shrnk\'). Did you mean "shrink"?'
    ]


@pytest.mark.parametrize(
    ("section", "line", "remedy"),
    [
        ("queue", "gruop_size = 4", "Did you mean queue.group_size?"),
        ("queue", "group-size = 4", "Did you mean queue.group_size?"),
        ("queue", "top_p = 4", "Did you mean model.top_p?"),
        ("queue", "boundary = 4", "Did you mean queue.bound?"),  # like a name here before the same elsewhere
        ("queue", "threds = 4", "Did you mean model.threads?"),
        (
            "queue",
            "thirds = 4",  # only a little like a key of another section
            "The keys of [queue] are group_size, batch_size, bound, strategy",
        ),
        ("queue", "zzzz = 4", "The keys of [queue] are group_size, batch_size, bound, strategy"),
    ],
)
def test_an_unknown_key_guesses_the_right_one(messages, section, line, remedy):
    name = line.split(" ")[0]
    assert messages(GIVEN + f"[{section}]\n{line}") == [
        f"run.toml:4: {section}.{name}: is not a setting (got 4). {remedy}"
    ]


def test_unknown_sections_and_keys_without_a_section(messages):
    assert messages("bound = 3\nzzzz = 1\n" + GIVEN + "[queu]\n[elsewhere]\nx = 1") == [
        "run.toml:1: bound: is not in a section (got 3). Did you mean queue.bound?",
        "run.toml:2: zzzz: is not in a section (got 1). Put it into a section",
        "run.toml:5: queu: is not a section. Did you mean [queue]?",
        "run.toml:6: elsewhere: is not a section. The sections are queue, model",
    ]


def test_a_section_that_is_a_value(messages):
    assert messages("queue = 3\n" + GIVEN) == [
        "run.toml:1: queue: must be a section, written [queue] (got 3). Write its keys below a line [queue]"
    ]


def test_a_missing_required_key_names_section_and_example(messages):
    rule = 'model.path: is required: The model. In section [model] write, for example, path = "smollm"'
    assert messages("") == [f"run.toml: {rule}"]
    assert messages("\n[model]\ntop_p = 1.0") == [f"run.toml:2: {rule}"]
    assert messages("", "model.top_p=1.0") == [f"run.toml: {rule}"]


def test_rules_of_a_section_and_between_sections_are_blamed_on_what_was_written(messages):
    assert messages(GIVEN + "[queue]\nbatch_size = 31") == [
        "run.toml:4: queue.batch_size: must be a multiple of group_size (8) (got 31). Use 30"
    ]
    assert messages(GIVEN + "top_p = 0.5\n[queue]\nbound = 0") == [
        "run.toml:3: model.top_p: must be 1 when queue.bound is 0 (got 0.5). Use 1"
    ]
    assert messages(GIVEN + "top_p = 0.5", "queue.bound=0") == [
        "run.toml:3: model.top_p: must be 1 when queue.bound is 0 (got 0.5). Use 1"
    ]


def test_all_problems_come_at_once_in_the_order_of_the_file(messages):
    text = "[queue]\nbound = 0\nbatch_size = 0\n[model]\ntop_p = 0.5\nbits = 3\n"
    assert messages(text, "queue.group_size=x", "model.compile=yes") == [
        "run.toml:3: queue.batch_size: must be at least 1 (got 0)",
        "run.toml:4: model.path: is required: The model. "
        'In section [model] write, for example, path = "smollm"',
        "run.toml:5: model.top_p: must be 1 when queue.bound is 0 (got 0.5). Use 1",
        "run.toml:6: model.bits: must be 4 or 8 (got 3)",
        "command line: queue.group_size: must be an integer (got 'x')",
        "command line: model.compile: must be true or false (got 'yes'). "
        "Write it in lower case and without quotes",
    ]


def test_a_rule_is_not_checked_on_a_refused_value(messages):
    assert messages(GIVEN + "top_p = 0.5\n[queue]\nbound = -1") == [
        "run.toml:5: queue.bound: must be at least 0 (got -1)"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[queue]\nbound = 1\nbound = 2", "run.toml:3: not valid TOML: Cannot overwrite a value"),
        (
            "[queue]\nbound = yes",
            "run.toml:2: not valid TOML: Invalid value. "
            "Strings need quotes; true and false are in lower case",
        ),
        ("[queue\nbound = 1", "run.toml:1: not valid TOML: Expected ']' at the end of a table declaration"),
        ('[queue]\n\nx = "', "run.toml:3: not valid TOML: Unterminated string"),
    ],
)
def test_a_syntax_error_has_file_and_line(load, text, message):
    with pytest.raises(UserError) as caught:
        load(text)
    assert str(caught.value) == message


def test_unreadable_files(load, tmp_path):
    def message(path):
        with pytest.raises(UserError) as caught:
            read_source(path, [])
        return str(caught.value)

    missing, broken = tmp_path / "missing.toml", tmp_path / "broken.toml"
    broken.write_bytes(b"a = 1\nb = '\xff'\n")
    assert message(missing) == (
        f"the config file must exist (got {str(missing)!r}). "
        "Give the path of a TOML file, such as examples/quickstart.toml"
    )
    assert message(broken) == f"{broken}:2: the config file must be UTF-8 text. Save it as UTF-8"
    assert message(tmp_path) == (
        f"the config must be a file, not a directory (got {str(tmp_path)!r}). "
        f"Give a TOML file; to go on with a run: headway resume {tmp_path}"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.seed=9223372036854775808", "run.seed: must be at least 0 and at most 9223372036854775807"),
        ("run.name=../../etc", "run.name: must be of letters, digits, _, . and -, at most 100"),
        (f"run.name={'a' * 101}", "run.name: must be of letters, digits, _, . and -, at most 100"),
        ('model.path=""', "model.path: must be of at least one character (got '')"),
    ],
)
def test_bounds_are_said_in_words_and_whole_numbers(override, message):
    with pytest.raises(ConfigError) as caught:
        load_config(None, ("model.path=tiny", "environment.name=arithmetic", override))
    (problem,) = caught.value.problems
    assert message in str(problem)
