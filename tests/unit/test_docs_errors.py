"""docs/errors.md holds every way in which input is refused, each with a rule and a remedy."""

import re
from pathlib import Path

import headway
from headway.cli.error_page import current_page, refusals
from headway.core.errors import ConfigError, UserError

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
PACKAGE = Path(headway.__file__).parent
FOUND = refusals()


def test_the_page_is_current():
    assert current_page() == PAGE, "python -m headway.cli.error_page > docs/errors.md"


def test_every_refusal_has_a_rule_and_a_remedy_where_it_is_made():
    assert [refusal.where for refusal in FOUND if not refusal.rules] == []
    assert [refusal.where for refusal in FOUND if not refusal.remedies] == []


def test_every_room_that_refuses_has_a_section():
    for refusal in FOUND:
        for rule in refusal.rules:
            assert " ".join(rule.split()).replace("|", "\\|") in PAGE, refusal.where


def test_no_raise_of_a_user_error_is_overlooked():
    """A text search finds the same places as the page's reader, but those that pass on another's rule."""
    read = {refusal.where.rpartition(":")[0] for refusal in FOUND}
    kinds = "|".join(cls.__name__ for cls in [UserError, *_below(UserError)] if cls is not ConfigError)
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(rf"raise (?:{kinds})\(\s*f?\"", path.read_text(encoding="utf-8")):
            assert str(path.relative_to(PACKAGE)) in read


def _below(cls):
    return [below for child in cls.__subclasses__() for below in (child, *_below(child))]
