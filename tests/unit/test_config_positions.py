"""The scanner finds the line of every key that tomllib finds."""

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config.positions import key_lines
from headway.config.show import toml_value

DOCUMENT = '''\
# a comment with "quotes" and [brackets]
top = 1
"quoted key".inner = 'a # b'

[section]  # comment
plain = "text \\" [not] = a table"   # comment
dotted.one = 1
dotted.two = { x = 1, y.z = [1, { w = "}" }], "q]" = 2 }
date = 1979-05-27 07:32:00
dates = [1979-05-27 07:32:00, 1979-05-28]
lines = [
  1, # one
  "]",

  { deep = true },
]
text = """
key = "not a key"
[not.a.table]
\\""" still text""""
after = 1
literal = \'\'\'
x = 1 \'\' \'\'\'
[section.sub . "d.e"]
here = -1.5e3

[[array]]
name = "first"
[array.inner]
deep = 1
[[array]]
name = "second"
[array.inner]
deep = 2
[[array.nested]]
last = inf
'''


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, str(index))
            yield from leaves(inner, (*path, str(index)))


def test_every_key_of_a_document_with_all_syntax_is_found():
    lines = key_lines(DOCUMENT)
    assert set(lines) == set(leaves(tomllib.loads(DOCUMENT)))


def test_lines_are_those_of_the_keys():
    lines = key_lines(DOCUMENT)
    text = DOCUMENT.split("\n")

    def line_of(*path):
        return text[lines[path] - 1].strip()

    assert line_of("top") == "top = 1"
    assert line_of("quoted key", "inner").startswith('"quoted key"')
    assert line_of("section", "dotted", "two", "y", "z", "1", "w").startswith("dotted.two")
    assert line_of("section", "lines", "1") == '"]",'
    assert line_of("section", "lines", "2", "deep") == "{ deep = true },"
    assert line_of("section", "after") == "after = 1"
    assert line_of("section", "sub", "d.e", "here") == "here = -1.5e3"
    assert line_of("array", "0", "name") == 'name = "first"'
    assert line_of("array", "1", "inner", "deep") == "deep = 2"
    assert line_of("array", "1", "nested", "0", "last") == "last = inf"


def test_windows_line_ends_count_once():
    assert key_lines("a = 1\r\n\r\n[b]\r\nc = '''x\r\ny'''\r\nd = 2\r\n") == {
        ("a",): 1,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "d"): 6,
    }


values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=4))
def test_keys_of_any_document_are_those_of_the_parser(document):
    text = "".join(f"{toml_value(key)} = {toml_value(value)}\n" for key, value in document.items())
    assert tomllib.loads(text) == document
    assert set(key_lines(text)) == set(leaves(document))
    assert all(key_lines(text)[(key,)] == index for index, key in enumerate(document, start=1))
