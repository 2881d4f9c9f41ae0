"""docs/behaviours.md names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


def test_each_behaviour_names_a_test():
    lines = [
        line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| Behaviour")
    ]
    assert len(lines) >= 30
    assert all("::test_" in line for line in lines)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file, name):
    source = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(async )?def {name}\(", source, re.MULTILINE)
