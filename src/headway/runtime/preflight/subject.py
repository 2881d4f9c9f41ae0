"""What is looked at: a config, and what is loaded of it once for all checks."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.source import Source, read_source
from headway.models.load import model_facts
from headway.renderers.chat import Renderer
from headway.runtime.environment_worker import build_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.config.compose import Config
    from headway.core.facts import ModelFacts
    from headway.core.protocols import Environment


class Subject:
    """A run that was not started.

    Args:
        config: as it was loaded.
        path: its file.
        overrides: such as `queue.bound=2`.
    """

    def __init__(self, config: Config, path: Path | None, overrides: Sequence[str] = ()) -> None:
        self.config = config
        self.path = path
        self.overrides = tuple(overrides)
        self.model_dir = Path()  # set by the check of the model's files
        self.context_tokens = 0  # the longest that tried rollouts allow; set by the check of rollouts

    @cached_property
    def source(self) -> Source:
        """The config file, with the places of its keys."""
        return read_source(self.path, self.overrides)

    @cached_property
    def facts(self) -> ModelFacts:
        """The model's shape."""
        return model_facts(self.model_dir)

    @cached_property
    def renderer(self) -> Renderer:
        """Tokenizer and chat template; ModelError when they cannot be used."""
        return Renderer(self.model_dir)

    @cached_property
    def environments(self) -> dict[str, Environment]:
        """The run's environments by source; "" is the one that is evaluated."""
        return build_all(self.config)

    @cached_property
    def train_environments(self) -> dict[str, Environment]:
        """Those that train tasks come from."""
        asked = {name: entry for name, entry in self.environments.items() if name}
        return asked or self.environments

    @property
    def run_dir(self) -> Path:
        """The folder of the run directories, or the nearest one above it that is there."""
        place = Path(self.config.run.dir).absolute()
        while not place.is_dir() and place != place.parent:
            place = place.parent
        return place
