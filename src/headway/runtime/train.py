"""`headway train`: prepare a new run and live it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.scheduler import scheduler_settings
from headway.config.show import write_config
from headway.core.clock import wall_time
from headway.core.codec import to_plain
from headway.core.events import RunStarted
from headway.matching.control import Controller
from headway.models.load import model_facts
from headway.queue.scheduler import Scheduler
from headway.runtime import directory, reserve
from headway.runtime.life import Prepared, live
from headway.runtime.preflight.checks import fast_part
from headway.runtime.preflight.subject import Subject
from headway.runtime.sinks import with_sinks
from headway.runtime.view import View, open_view, say
from headway.telemetry.header import new_header
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.tensorboard import require_tensorboard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.config.compose import Config
    from headway.config.model import ModelSettings
    from headway.telemetry.settings import Choice


def train(
    config: Config,
    *,
    config_path: Path | None,
    overrides: Sequence[str] = (),
    view: Choice | None = None,
    default_name: str = "",
) -> int:
    """Run a new run to its end; return the exit code. `view` takes the place of `telemetry.view`.

    `default_name` is the run's where neither the config nor its file says one.

    What `headway check` looks at without a model or a sandbox is looked at first; `config` is what the other
    two load to.

    Raises UserError for anything that the user can mend, before a process is started where possible.
    """
    name = config.run.name or default_name or (config_path.stem if config_path else "run")
    parent = Path(config.run.dir)
    if not config.run.name:
        name = directory.free_name(parent, name)
    model_dir = fast_part(Subject(config, config_path, overrides))
    if config.telemetry.tensorboard:
        require_tensorboard("telemetry.tensorboard")
    config = config_from_anywhere(config)
    run_dir = directory.create(parent, name)
    with directory.claimed(run_dir):
        return first_life(config, run_dir, model_dir, view or config.telemetry.view)


def first_life(
    config: Config,
    run_dir: Path,
    model_dir: Path,
    view: Choice,
    *,
    subject: str = "",
    aside: View | None = None,
) -> int:
    """Live the first life of a run in a directory that was made for it; return the exit code.

    Args:
        config: with absolute paths.
        run_dir: the directory, claimed.
        model_dir: the model, verified.
        view: how progress is shown.
        subject: what an evaluation measures, in words.
        aside: a view that takes the place of `view`.
    """
    reserve.take(run_dir)
    (aside.say if aside is not None else say)(f"run directory: {run_dir}")
    write_config(config, run_dir / directory.CONFIG)
    settings, facts, lora = scheduler_settings(config), model_facts(model_dir), config.trainer
    header = new_header(
        config=to_plain(config),
        seed=config.run.seed,
        queue=to_plain(settings),
        code=directory.code_version(),
        model=facts,
        lora_params=None if lora.full else facts.lora_params(lora.lora_rank, lora.lora_targets),
        usd_per_hour=config.run.usd_per_hour,
        peak_flops_per_s=config.telemetry.peak_flops_per_s,
        subject=subject,
    )
    journal = JournalWriter(run_dir / directory.JOURNAL)
    journal.write_header(header)
    metrics = RunMetrics(header)
    return live(
        Prepared(
            config=config,
            run_dir=run_dir,
            run_id=run_id(run_dir),
            model_dir=model_dir,
            scheduler=Scheduler(settings),
            controller=Controller(config.control, settings),
            journal=journal,
            metrics=metrics,
            first=(RunStarted(),),
            next_seq=0,
            clock_offset_s=0.0,
            lineage=0,
            checkpoint=None,
            view=aside
            or with_sinks(
                open_view(view, run_dir.name, metrics, header), config.telemetry, run_dir, metrics, header
            ),
        )
    )


def config_from_anywhere(config: Config) -> Config:
    """Return the config with absolute paths, so that a resume may be started in another directory."""
    config, sandbox = replace(config, model=placed(config.model)), config.sandbox.directory
    if sandbox:
        sandbox = str(Path(sandbox).expanduser().absolute())
        config = replace(config, sandbox=replace(config.sandbox, directory=sandbox))
    return config


def placed(model: ModelSettings) -> ModelSettings:
    """Return the settings with the absolute path of a model that is on this machine."""
    path = Path(model.path).expanduser()
    if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        return replace(model, path=str(path.absolute()))
    return model


def run_id(run_dir: Path) -> str:
    """Return the label of this life's sandboxes; unique on this machine, and the same for reaping."""
    return f"{run_dir.name}-{os.getpid()}-{int(wall_time())}"
