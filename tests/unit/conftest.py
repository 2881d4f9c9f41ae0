"""What several unit tests stand on: a tokenizer in a directory, and the renderer of it."""

import pytest

from headway.renderers.chat import Renderer
from tests.unit.rollout_parts import write_tokenizer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def renderer(model_dir):
    return Renderer(model_dir)
