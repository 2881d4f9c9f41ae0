"""docs/cli.md is what the commands say, and each command says enough."""

import re
from pathlib import Path

import click
import pytest

from headway.cli.main import EXIT_CODES
from headway.cli.reference import current_page, leaf_commands

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")
COMMANDS = dict(leaf_commands())


def test_the_page_is_current():
    assert current_page() == PAGE, "python -m headway.cli.reference > docs/cli.md"


def test_the_page_has_the_exit_codes_and_a_section_for_each_command():
    assert all(f"| {code} | {meaning} |" in PAGE for code, meaning in EXIT_CODES.items())
    assert re.findall(r"^## (headway .+)$", PAGE, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("path", list(COMMANDS))
def test_a_command_explains_its_arguments_and_options_and_shows_examples(path):
    command = COMMANDS[path]
    assert re.search(r"^ *Examples?:\n +.*headway ", command.help, re.MULTILINE)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts[0]}"
        else:
            name = "KEY=VALUE" if parameter.name == "overrides" else parameter.human_readable_name
            assert re.search(rf"\b{re.escape(name)}\b", command.help), f"{path} {name}"


@pytest.mark.parametrize("path", list(COMMANDS))
def test_what_a_help_text_shows_runs_the_command(path):
    """Each line of the examples calls this command, with options that it has."""
    command = COMMANDS[path]
    examples = re.findall(rf"\b({re.escape(path)}(?: .*?)?)(?:\)\"|  +|$)", command.help, re.MULTILINE)
    assert examples
    for example in examples:
        for option in re.findall(r" (--?[a-z][a-z-]*)", example):
            known = [name for item in command.params for name in (*item.opts, *item.secondary_opts)]
            assert option in known, example
