"""`headway resume`: a new life of a run, from its last complete checkpoint and its journal."""

from __future__ import annotations

from pathlib import Path

from headway.config.load import load_config
from headway.core.codec import to_plain
from headway.core.errors import RunDirectoryError
from headway.core.events import RunResumed
from headway.runtime import directory, snapshots
from headway.runtime.job import checkpoint_dir
from headway.runtime.life import Prepared, live, sweep
from headway.runtime.train import model_directory, run_id, say, scheduler_settings
from headway.telemetry.journal import read_journal, truncate_torn_tail
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics
from headway.trainer.checkpoints import latest_checkpoint, read_checkpoint


def resume(run_dir: Path) -> int:
    """Go on with a run; return the exit code.

    Raises RunDirectoryError when it is not a run or is still running, JournalError when its journal is
    damaged.
    """
    with directory.claimed(run_dir):
        return _resume(run_dir)


def _resume(run_dir: Path) -> int:
    killed = directory.last_life(run_dir)
    path = run_dir / directory.JOURNAL
    truncate_torn_tail(path)
    journal = read_journal(run_dir)
    config = load_config(run_dir / directory.CONFIG, ())
    if killed is not None:
        sweep(config, killed)
        directory.end_life(run_dir)
    if to_plain(config) != journal.header.config:
        raise RunDirectoryError(
            f"{run_dir / directory.CONFIG} is not the config that the run began with",
            remedy="A run goes on with its own settings: undo the change, or start a new run.",
        )
    settings = scheduler_settings(config)
    scheduler, next_seq, last_s = snapshots.rebuild(run_dir, settings, journal)
    if scheduler.state.phase == "finished" and scheduler.state.outcome not in ("interrupted", "failed"):
        say(f"the run {run_dir} is complete ({scheduler.state.outcome}: {scheduler.state.message})")
        return 0
    model_dir = model_directory(config)
    checkpoint = latest_checkpoint(checkpoint_dir(run_dir), scheduler.state.forks)
    step = int(read_checkpoint(checkpoint)["step"]) if checkpoint is not None else 0
    lineage = scheduler.state.lineage + 1
    if step < scheduler.state.saved_step:
        lost = f"the checkpoint of step {scheduler.state.saved_step}"
        say(f"warning: {lost} is damaged or gone; going on from step {step}")
    metrics = RunMetrics.of(journal)
    say(f"run directory: {run_dir}")
    return live(
        Prepared(
            config=config,
            run_dir=run_dir,
            run_id=run_id(run_dir),
            model_dir=model_dir,
            scheduler=scheduler,
            journal=JournalWriter(path, append=True),
            metrics=metrics,
            first=RunResumed(lineage, step, last_s),
            next_seq=next_seq,
            clock_offset_s=last_s,
            lineage=lineage,
            checkpoint=checkpoint,
            say=say,
        )
    )
