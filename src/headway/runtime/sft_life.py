"""One life of a supervised run: steps in the data's order, evaluations, checkpoints, the model at the end.

Consumes rows that are stored; waits for nothing but its own computing. Ctrl-C once ends it after the step in
progress, with a checkpoint; twice at once.
Invariant: what a life does depends on the rows, the settings and the step that it goes on from alone, so a
run that was broken off and resumed ends with the same weights as an unbroken one, to the bit.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.algorithms.settings import AlgorithmSettings
from headway.config.compose import SftConfig
from headway.core.clock import RunClock, stopwatch
from headway.core.codec import finite_only
from headway.core.errors import DiskFullError, HeadwayError, UserError
from headway.runtime import directory
from headway.runtime.job import checkpoint_dir, payload_dir
from headway.runtime.life import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from headway.runtime.sft_model import MODEL, write_trained_model
from headway.runtime.sft_rows import SftRows
from headway.telemetry.supervised import RecordWriter, read_supervised
from headway.telemetry.supervised_progress import SftProgress, lowest_before_the_end
from headway.telemetry.supervised_report import supervised_summary
from headway.trainer.order import Order

if TYPE_CHECKING:
    from headway.core.protocols import StepResult
    from headway.runtime.sft_rows import SftRow
    from headway.trainer.local import LocalTrainer
    from headway.trainer.order import Batch

_EVAL_ROWS = 64  # read at once


@dataclass(slots=True)
class SftPrepared:
    """Everything that one life starts from."""

    config: SftConfig
    run_dir: Path
    model_dir: Path
    rows: SftRows
    record: RecordWriter
    planned_steps: int
    clock_offset_s: float
    lineage: int
    checkpoint: Path | None
    say: Callable[[str], None]

    @property
    def quoted(self) -> str:
        """The run directory as a shell takes it."""
        return shlex.quote(str(self.run_dir))


def order_of(config: SftConfig, rows: SftRows) -> Order:
    """Return how the data is gone through."""
    lengths = [row.num_tokens for row in rows.train]
    sft = config.sft
    return Order(lengths, config.run.seed, sft.shuffle, sft.batch_size, sft.batch_tokens)


def planned_steps(config: SftConfig, rows: SftRows) -> int:
    """Return the step at which the run is complete."""
    num = order_of(config, rows).num_steps(config.sft.epochs)
    return min(num, config.sft.steps) if config.sft.steps else num


def live_sft(prepared: SftPrepared) -> int:
    """Run one life to its end and return the command's exit code.

    A full disk is told in one line. Raises UserError when a step was not finite, HeadwayError for a fault. In
    each case the run can be resumed.
    """
    run_dir = prepared.run_dir
    record = directory.LifeRecord(os.getpid(), run_dir.name, "", directory.this_host())
    directory.begin_life(run_dir, record)
    with contextlib.ExitStack() as ending:  # from the last to the first, whatever one of them raises
        ending.callback(directory.end_life, run_dir)
        ending.callback(_write_summary, prepared)
        ending.callback(prepared.record.close)
        try:
            return _Life(prepared).run()
        except KeyboardInterrupt:
            prepared.say(
                f"stopped at once; `headway resume {prepared.quoted}` goes on from the last checkpoint"
            )
            return EXIT_INTERRUPTED
        except UserError:
            prepared.say(f"the run stays in {run_dir}; `headway resume {prepared.quoted} KEY=VALUE` goes on")
            raise
        except DiskFullError as error:
            prepared.say(f"error: {error}")
            prepared.say(f"the run stays in {run_dir}; `headway resume {prepared.quoted}` goes on")
            return EXIT_FAILED


def _write_summary(prepared: SftPrepared) -> None:
    """Write the summary; a report has it from the record all the same, so that a failure is no fault."""
    run_dir = prepared.run_dir
    try:
        directory.write_summary(run_dir, supervised_summary(read_supervised(run_dir)))
    except OSError as error:
        prepared.say(f"warning: {run_dir / directory.SUMMARY} cannot be written: {error.strerror}")


class _Life:
    def __init__(self, prepared: SftPrepared) -> None:
        self._prepared = prepared
        self._config = prepared.config
        self._clock = RunClock(prepared.clock_offset_s)
        self._last_step = prepared.planned_steps
        self._stop = ""  # the signal that asked for it
        self._evaluated: int | None = None  # the step
        self._saved: int | None = None
        self._progress = SftProgress(prepared.planned_steps)
        self._trainer = self._make_trainer()

    def run(self) -> int:
        """Train until the last step, or until told to stop."""
        try:
            with self._signals():
                if self._trainer.steps == 0:
                    self._evaluate()
                for batch in self._batches():
                    self._step(batch)
                    if self._stop:
                        return self._interrupted()
                self._evaluate()
            return self._complete()
        except Exception as error:
            message = error.rule if isinstance(error, HeadwayError) else repr(error)
            with contextlib.suppress(DiskFullError):  # then the record ends as that of a killed run
                self._write("ended", step=self._trainer.steps, outcome="failed", message=message)
            error.add_note(f"`headway resume {self._prepared.quoted}` goes on from the last checkpoint")
            raise

    def _make_trainer(self) -> LocalTrainer:
        from headway.trainer.local import LocalTrainer

        prepared, sft, trainer = self._prepared, self._config.sft, self._config.trainer
        if sft.learning_rate is not None:
            trainer = replace(trainer, learning_rate=sft.learning_rate)
        if sft.schedule == "linear":  # above 0 at the last step
            trainer = replace(trainer, schedule="linear", decay_steps=self._last_step + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, for PEFT's ears
            made = LocalTrainer(
                prepared.model_dir,
                trainer,
                AlgorithmSettings(loss="cross_entropy", normaliser=sft.normaliser),
                payload_dir=payload_dir(prepared.run_dir),
                weights_dir=prepared.run_dir / "weights",
                checkpoint_dir=checkpoint_dir(prepared.run_dir),
                seed=self._config.run.seed,
                keep_checkpoints=self._config.checkpoint.keep,
                keep_every_steps=self._config.checkpoint.keep_every_steps,
            )
        if prepared.checkpoint is not None:
            made.load(str(prepared.checkpoint))
        made.discard_after(made.steps)
        return made

    def _batches(self) -> Iterator[Batch]:
        order = order_of(self._config, self._prepared.rows).batches(self._trainer.steps)
        for _ in range(self._trainer.steps, self._last_step):
            yield next(order)

    def _step(self, batch: Batch) -> None:
        rows, began = [self._prepared.rows.train[index] for index in batch.rows], stopwatch()
        result = self._trainer.step([row.row for row in rows])
        facts = self._facts(batch, result, stopwatch() - began)
        self._write("step", **facts)
        if result.metrics["nonfinite"]:
            raise self._not_finite(rows, facts["loss"])
        step, last = self._trainer.steps, self._trainer.steps == self._last_step
        for line in self._progress.after_step(facts, self._clock.now(), last=last or bool(self._stop)):
            self._prepared.say(line)
        if _due(step, self._config.sft.eval_every_steps):
            self._evaluate()
        if _due(step, self._config.checkpoint.every_steps):
            self._save()

    def _facts(self, batch: Batch, result: StepResult, duration_s: float) -> dict[str, Any]:
        metrics = finite_only(result.metrics)
        return {
            "step": self._trainer.steps,
            "epochs": round(batch.epochs, 6),
            "loss": metrics.get("loss"),
            "num_tokens": result.num_tokens,
            "num_trained_tokens": result.num_trained_tokens,
            "num_rows": len(batch.rows),
            "learning_rate": metrics["learning_rate"],
            "grad_norm": metrics.get("grad_norm"),
            "duration_s": round(duration_s, 6),
        }

    def _not_finite(self, rows: list[SftRow], loss: float | None) -> UserError:
        places = ", ".join(row.place for row in rows[:8])
        what = "loss" if loss is None else "gradient"
        return UserError(
            f"loss and gradient must be finite; the {what} of step {self._trainer.steps} is not",
            remedy=f"Its first conversations are {places}. A lower sft.learning_rate may help",
        )

    def _evaluate(self) -> None:
        rows = self._prepared.rows.eval
        step = self._trainer.steps
        if not rows or self._evaluated == step:
            return
        total, num = 0.0, 0
        for start in range(0, len(rows), _EVAL_ROWS):
            for samples in self._trainer.forward([row.row for row in rows[start : start + _EVAL_ROWS]]):
                for logp in samples:
                    total -= logp.double().sum().item()
                    num += len(logp)
        loss = total / num
        self._evaluated = step
        self._write("eval", step=step, loss=loss if math.isfinite(loss) else None, num_tokens=num)
        self._prepared.say(self._progress.evaluated(step, loss, len(rows)))

    def _save(self) -> None:
        step = self._trainer.steps
        if self._saved == step:
            return
        self._trainer.save(step, lineage=self._prepared.lineage)
        self._saved = step
        self._prepared.record.sync()

    def _interrupted(self) -> int:
        self._save()
        message = f"{self._stop} at step {self._trainer.steps}"
        self._write("ended", step=self._trainer.steps, outcome="interrupted", message=message)
        self._prepared.say(f"interrupted and saved; `headway resume {self._prepared.quoted}` goes on")
        return EXIT_INTERRUPTED

    def _complete(self) -> int:
        self._save()
        run_dir = self._prepared.run_dir
        write_trained_model(run_dir, self._trainer.steps, self._prepared.model_dir, self._config)
        self._write("ended", step=self._trainer.steps, outcome="complete", message="")
        if best := lowest_before_the_end(read_supervised(run_dir).evals):
            self._prepared.say(best)
        self._prepared.say(f"complete after {self._trainer.steps} steps; the model is in {run_dir / MODEL}")
        self._prepared.say(f"go on with: headway train CONFIG model.path={run_dir / MODEL}")
        return EXIT_OK

    def _write(self, kind: str, **facts: Any) -> None:
        self._prepared.record.write(kind, self._clock.now(), **facts)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """Let the first SIGINT or SIGTERM ask for the end, and the second be one."""

        def asked(number: int, frame: object) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = signal.Signals(number).name
            self._prepared.say("stopping after this step, with a checkpoint; once more stops at once")

        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
