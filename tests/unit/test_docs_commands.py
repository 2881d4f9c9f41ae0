"""Every command, with every argument and option, is documented."""

import re
from pathlib import Path

import click
import pytest

from headway.cli.lazy import LazyGroup
from headway.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (headway [a-z ]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def leaf_commands(group, path="headway"):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if isinstance(command, LazyGroup):
            yield from leaf_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(leaf_commands(cli))


def test_the_page_has_a_section_for_each_command_and_no_other():
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("path", list(COMMANDS))
def test_a_command_is_documented_with_its_parameters_and_examples(path):
    section, command = SECTIONS[path], COMMANDS[path]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"- `{parameter.opts[-1]}" in section
        else:
            assert parameter.human_readable_name.strip("[].") in section
    for example in re.findall(r"^ +(headway .+)$", command.help, re.MULTILINE):
        assert f"    {example}\n" in section
