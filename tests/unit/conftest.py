"""What several unit tests stand on: a tokenizer in a directory, and the renderer of it."""

import os
import shutil
import subprocess

import pytest

from headway.models.cache import MANIFEST
from headway.renderers.chat import Renderer
from tests.unit.rollout_parts import write_tokenizer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A whole checkpoint with the tiny model's tokenizer and template, and weights of no use."""
    pytest.importorskip("torch")
    from headway.models.tiny import TinyRecipe, make_tiny

    return make_tiny(tmp_path_factory.mktemp("checkpoint") / "tiny", recipe=TinyRecipe(steps=1))


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """A copy of it that a test may break, without a manifest, as a user's own would be."""
    path = tmp_path / "own"
    shutil.copytree(tiny_checkpoint, path, ignore=shutil.ignore_patterns(MANIFEST))
    return path


@pytest.fixture(scope="module")
def renderer(model_dir):
    return Renderer(model_dir)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "headway-test", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs root: a small file system is mounted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
