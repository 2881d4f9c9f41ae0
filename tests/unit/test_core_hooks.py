"""Which line of whose code an error names."""

import json
import sys

import pytest

from headway.core.hooks import HookError, load_function, load_module, place_in_hook
from headway.environments.faults import describe_exception

OWN = """
import json
from concurrent.futures import ThreadPoolExecutor

import helper


def reads(text):
    return json.loads(text)


def asks(text):
    return helper.reads(text)


def elsewhere(text):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(json.loads, text).result()
"""
HELPER = """
import json


def reads(text):
    return json.loads(text)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("helper", None)


def line(text, words):
    return text.splitlines().index(words) + 1


@pytest.mark.parametrize(
    ("function", "file", "text", "words"),
    [
        ("reads", "own.py", OWN, "    return json.loads(text)"),
        ("asks", "helper.py", HELPER, "    return json.loads(text)"),
        ("elsewhere", "own.py", OWN, "        return pool.submit(json.loads, text).result()"),
    ],
)
def test_the_innermost_line_of_the_user_s_own_files_is_named(folder, function, file, text, words):
    called = load_function(f"{folder}/own.py:{function}", ["text"])
    with pytest.raises(json.JSONDecodeError) as caught:
        called("no JSON")
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # this test is somebody's own code too
    assert place_in_hook(error) == f"{folder}/{file}:{line(text, words)}"
    assert describe_exception(error).endswith(f" at {file}:{line(text, words)}")


def test_python_s_own_library_is_nobody_s_hook():
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("no JSON")
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next
    assert place_in_hook(error) == ""


def test_a_hook_of_an_installed_package_is_named_by_its_own_line(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    for name, text in (
        ("first.py", "import second\n\n\ndef go():\n    second.go()\n"),
        ("second.py", "def go():\n    1 / 0\n"),
    ):
        packages.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    monkeypatch.syspath_prepend(packages)
    function = load_function("first:go", [])
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next
    assert place_in_hook(error) == f"{packages}/first.py:5"


def test_a_file_that_cannot_be_imported_is_named_by_its_own_line(tmp_path):
    (tmp_path / "own.py").write_text("import json\n\nTABLE = json.loads('no JSON')\n")
    with pytest.raises(HookError, match=r"raised JSONDecodeError: .* at own\.py:3"):
        load_module(f"{tmp_path}/own.py:x")
